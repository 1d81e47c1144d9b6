"""Read the metadata table: which of its instants are valid, its file slices, their records, and look-ups."""
