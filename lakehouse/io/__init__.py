"""One file group's rows: reading, merging and writing base files within a memory budget."""
