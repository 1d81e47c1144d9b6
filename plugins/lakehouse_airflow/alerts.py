"""Example callbacks for failed tasks and missed deadlines. They only write log lines; replace them with notifiers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def task_failed(context: Mapping[str, Any]) -> None:
    """Log the failed task, its run and its exception. Use it as `on_failure_callback`."""
    log.error("%s of %s failed: %s", context["ti"].task_id, context["run_id"], context.get("exception"))


async def deadline_missed(what: str, **kwargs: Any) -> None:
    """Log a late run. Use it as callback of a DeadlineAlert, which the triggerer calls."""
    log.error("%s is late: %s", what, kwargs.get("context"))
