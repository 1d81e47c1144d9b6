"""Unit tests of lakehouse.platform.sources."""
