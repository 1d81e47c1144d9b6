"""Suggests a table spec from a sample of a source: reading is separate from inference, which is pure."""
