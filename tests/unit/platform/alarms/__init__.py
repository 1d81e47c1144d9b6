"""Unit tests of lakehouse.platform.alarms."""
