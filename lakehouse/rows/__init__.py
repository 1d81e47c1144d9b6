"""How a row gets its key and how two rows become one, on Arrow arrays. Pure."""
