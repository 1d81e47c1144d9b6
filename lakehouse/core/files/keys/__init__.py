"""Find record keys in files: look up, match, locate, and delete by tombstones."""
