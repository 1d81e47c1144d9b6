"""Where a key may be. Pure."""
