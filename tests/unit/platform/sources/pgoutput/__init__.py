"""Tests of the decoder of pgoutput messages."""
