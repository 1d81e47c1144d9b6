"""Unit tests of lakehouse.core."""
