"""Studies: jobs, artifacts, analysis, and what is told of them."""
