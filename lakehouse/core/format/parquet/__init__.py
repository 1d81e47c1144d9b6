"""Parquet footers: Thrift compact protocol, bloom filters and their hash function."""
