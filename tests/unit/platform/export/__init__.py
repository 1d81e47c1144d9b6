"""Unit tests of lakehouse.platform.export."""
