"""Tests against a Kafka broker."""
