"""Unit tests of lakehouse.platform.doctor."""
