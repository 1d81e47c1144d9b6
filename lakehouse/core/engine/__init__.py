"""The protocol by which operations run tasks, and its implementation on local threads (Spark: `lakehouse.spark`)."""
