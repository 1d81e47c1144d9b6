"""Stage rows for the tasks of a write, within the memory budget; markers of files that a write creates."""
