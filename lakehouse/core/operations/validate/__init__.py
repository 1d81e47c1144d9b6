"""Check that a table and its files follow the format and agree with each other."""
