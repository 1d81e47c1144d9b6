"""What an engineer declares: table specs, options and the argv contract of jobs. Light: no pyarrow, no pyspark."""
