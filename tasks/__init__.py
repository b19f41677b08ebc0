"""Tasks: data and roles only, one task a file."""
