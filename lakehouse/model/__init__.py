"""Immutable values with the names of the Hudi format. Standard library only, except for `pattern`."""
