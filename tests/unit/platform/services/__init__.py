"""Unit tests of lakehouse.platform.services."""
