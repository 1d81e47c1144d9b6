"""Load the state of a table: timeline, properties, commits, file slices."""
