"""The state of a table, computed from its files and commits: configuration, file system view, statistics. Pure."""
