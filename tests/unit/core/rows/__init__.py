"""Unit tests of lakehouse.core.rows."""
