"""Suggest a table spec from a source sample: reading is separate from inference, which is pure."""
