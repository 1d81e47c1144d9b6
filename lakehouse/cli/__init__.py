"""The command line, for people and for spark-submit."""
