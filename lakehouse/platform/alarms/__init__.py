"""Table alarms: rules in YAML, measures, and evaluation.

The rules read stored numbers and the history of runs, never storage. `evaluate` is pure. `catalog.alarms` stores the
problems as alarms, which users silence and notifiers send.
"""
