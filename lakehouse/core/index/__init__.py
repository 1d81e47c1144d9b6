"""Index types: which file group holds a record key."""
