"""What is measured: the sizes of W1 to W5, their first weights and batches, and the paren files that train them."""
