"""Create a table from a declaration."""
