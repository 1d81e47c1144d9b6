"""What is true now: table config, timeline, files, schema, folded from what storage holds. Pure."""
