"""Unit tests of lakehouse.demo."""
