"""Unit tests of lakehouse.platform.publish."""
