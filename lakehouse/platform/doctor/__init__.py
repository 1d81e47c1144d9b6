"""Checks of a deployment in Spark's environment: `lakehouse doctor`.

To add a check: describe it in `lakehouse.spec.contracts.doctor`, write its function in one of the modules
`*_checks.py`, and register it in `examine`. A check changes nothing, except `storage`, which writes one temporary file.
"""
