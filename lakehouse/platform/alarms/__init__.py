"""Alarms of tables: rules in YAML, what they measure, and their evaluation.

The rules read stored numbers and the history of runs, never storage. `evaluate` is pure. `catalog.alarms` stores its
problems as alarms, which people silence and notifiers send.
"""
