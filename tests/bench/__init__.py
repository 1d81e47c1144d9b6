"""Benchmarks: the platform and an alternative run in turn on the same rows, and the median of the ratios is reported.

`python -m tests.bench [name ...] [--rows N]` prints a table for each benchmark. No test asserts these times: seconds
depend on the machine, ratios much less.
"""
