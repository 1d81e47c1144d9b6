"""Unit tests of demo."""
