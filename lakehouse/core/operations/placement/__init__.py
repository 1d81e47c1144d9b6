"""Place the rows of a write into file groups: one placement per kind of index."""
