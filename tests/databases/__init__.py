"""Tests of databases as sources, with real servers."""
