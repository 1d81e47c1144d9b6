"""Unit tests of lakehouse.platform.fleet_views."""
