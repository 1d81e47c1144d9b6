"""Versioned values that processes exchange as JSON: reports of jobs, decisions, publications."""
