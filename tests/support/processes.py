"""Processes of their own in milliseconds: forked from a server that has imported what any of them needs.

A process has one such server for all its life, so whoever is the first to need it has it import for all tests.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_PRELOADED = [
    "tests.property.test_publish_kills",
    "tests.property.test_service_runs",
    "tests.property.test_wide_table",
    "tests.reliability.actors",
    "tests.reliability.kills",
    "tests.simulation.test_simulation",
    "tests.support.killed",
]


def forked() -> ForkServerContext:
    """Return the context whose processes are forked from that server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
