"""What a folder holds, read back as it stands."""
