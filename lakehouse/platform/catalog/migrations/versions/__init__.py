"""One module per version of the catalog schema."""
