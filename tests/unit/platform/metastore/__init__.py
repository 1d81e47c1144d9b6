"""Unit tests of lakehouse.platform.metastore."""
