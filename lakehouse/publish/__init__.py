"""Publication: what a metastore is told of tables, and Hive-style partitions that appear when their data is ready."""
