"""Planners: pure functions from table state, policy and time to a plan."""
