"""Tests of the codecs of the metadata table."""
