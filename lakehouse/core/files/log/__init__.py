"""Log files, and slices: the merge of a base file with its log files."""
