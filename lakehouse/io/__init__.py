"""One file group's rows: reading, merging and writing base files in pieces sized by a memory budget."""
