"""The source `kafka`: plan ranges of offsets, read and decode messages."""
