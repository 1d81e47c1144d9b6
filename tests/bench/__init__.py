"""Ratios measured side by side: ours and another way to the same rows run in turn, and medians of the pairs count.

`python -m tests.bench [name ...] [--rows N]` prints a table per bench. Nothing here is a timed test: seconds depend on
the machine, ratios much less.
"""
