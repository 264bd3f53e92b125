"""The same training with other tools. Each file here runs in an environment of its own, without paren."""
