"""The adapter to Spark: engine, data source, streaming, reading of files. The only package that imports pyspark."""
