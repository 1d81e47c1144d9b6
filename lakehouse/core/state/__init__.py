"""The state of a table, folded from what storage holds: configuration, file system view, statistics. Pure."""
