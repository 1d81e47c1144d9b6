"""Metastores: what is asked of them, a Hive Metastore over Thrift, one in memory, and published tables in them."""
