"""Callbacks for alerts: a task that failed, a run that is late. They log; put the notifiers of your house here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def task_failed(context: Mapping[str, Any]) -> None:
    """Say which task of which run failed, and why: for `on_failure_callback`."""
    log.error("%s of %s failed: %s", context["ti"].task_id, context["run_id"], context.get("exception"))


async def deadline_missed(what: str, **kwargs: Any) -> None:
    """Say which run is late: for the callback of a DeadlineAlert, which the triggerer runs."""
    log.error("%s is late: %s", what, kwargs.get("context"))
