"""Which service is due on which table, in which order they run, and the record of each run."""
