"""Unit tests of lakehouse.platform."""
