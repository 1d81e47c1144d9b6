"""Unit tests of lakehouse.model."""
