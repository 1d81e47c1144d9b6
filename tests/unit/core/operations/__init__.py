"""Unit tests of lakehouse.core.operations."""
