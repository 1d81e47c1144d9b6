"""Unit tests of lakehouse.core.planning."""
