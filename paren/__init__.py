"""paren: neural networks described in one text file, planned before the first step, the same on every device."""
