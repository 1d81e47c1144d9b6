"""Unit tests of lakehouse.spec."""
