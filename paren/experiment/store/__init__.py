"""Artifacts: what is made once and kept by the digest of what it was made from."""
