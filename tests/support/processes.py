"""Start test processes within milliseconds: fork them from a server that has already imported their modules.

A pytest process has one such server. The first test that needs it starts it, so it imports the modules of all tests.
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
    """Return a multiprocessing context that forks processes from the preloaded server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
