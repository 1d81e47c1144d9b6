"""Write rows: prepare the batch, look up keys, write files, commit."""
