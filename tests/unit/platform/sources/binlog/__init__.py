"""Unit tests of the binlog decoder."""
