"""Where people and spark-submit come in."""
