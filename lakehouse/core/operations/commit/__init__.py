"""Commit an instant: preconditions, conflict checks, markers, completion, and cleanup of files left behind."""
