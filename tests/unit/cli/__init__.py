"""Unit tests of lakehouse.cli."""
