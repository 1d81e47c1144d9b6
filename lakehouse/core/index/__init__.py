"""Index types: which file group contains a record key."""
