"""Unit tests of lakehouse.core.table."""
