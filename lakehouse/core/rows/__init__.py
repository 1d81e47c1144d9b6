"""Record keys, partition paths, ordering and merging of records, on Arrow arrays. Pure."""
