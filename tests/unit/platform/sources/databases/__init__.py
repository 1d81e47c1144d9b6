"""Tests of what all sources that are databases share."""
