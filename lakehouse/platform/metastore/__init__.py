"""Metastore clients: the protocol, Hive Metastore over Thrift, and an in-memory implementation."""
