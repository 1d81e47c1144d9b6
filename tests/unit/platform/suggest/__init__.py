"""Tests of suggested table specs."""
