"""Unit tests of lakehouse.core.files."""
