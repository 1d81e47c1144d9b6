"""The adapter to Spark: engine, data source, streaming, file readers. This is the only package that imports pyspark."""
