"""Unit tests of lakehouse.platform.ingest."""
