"""The only room that imports pyspark: engine, data source, streaming, schemas."""
