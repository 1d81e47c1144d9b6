"""Keys, records and merge rules of the metadata table: bytes to values and back."""
