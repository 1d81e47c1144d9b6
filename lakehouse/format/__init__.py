"""Bytes to values and back, on bytes and file objects. Opens no path, knows no table."""
