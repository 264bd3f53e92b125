"""The user's Python functions: what decides about their results, and how they are called."""
