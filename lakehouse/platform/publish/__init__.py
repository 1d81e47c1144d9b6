"""Publication of tables and partitions in a Hive Metastore."""
