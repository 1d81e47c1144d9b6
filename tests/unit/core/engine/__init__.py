"""Unit tests of lakehouse.core.engine."""
