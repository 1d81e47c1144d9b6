"""Tests of lakehouse.core.system."""
