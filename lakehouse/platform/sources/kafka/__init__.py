"""The source `kafka`: plan offset ranges, read and decode messages."""
