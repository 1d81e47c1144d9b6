"""What needs a Spark session."""
