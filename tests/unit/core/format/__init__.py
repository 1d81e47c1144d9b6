"""Unit tests of lakehouse.core.format."""
