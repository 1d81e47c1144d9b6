"""Tests of the scan for tables of a fleet."""
