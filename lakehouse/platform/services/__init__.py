"""Decide which services are due on which tables, run them in order of priority, and record each run."""
