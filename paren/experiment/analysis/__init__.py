"""The analysis of trained models: products, metrics, plots."""
