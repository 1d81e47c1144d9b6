"""Unit tests of lakehouse.core.timeline."""
