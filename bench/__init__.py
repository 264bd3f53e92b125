"""Measurements of paren: against its peers, against its own plans, and against the limits of the machine."""
