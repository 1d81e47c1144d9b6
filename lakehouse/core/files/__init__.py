"""Readers and writers of base files, log files, markers and staged rows, within a memory budget."""
