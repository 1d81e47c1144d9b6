"""Log files: block framing, delete blocks, change data blocks, record positions."""
