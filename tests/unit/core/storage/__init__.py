"""Unit tests of lakehouse.core.storage."""
