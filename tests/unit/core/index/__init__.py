"""Unit tests of lakehouse.core.index."""
