"""Unit tests of lakehouse.platform.catalog."""
