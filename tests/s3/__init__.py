"""Tests against a local S3 server."""
