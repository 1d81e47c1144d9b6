"""Unit tests of lakehouse.core.state."""
