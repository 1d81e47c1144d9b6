"""Arguments of DAGs, tasks and pages whose values depend on Airflow's version."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from lakehouse_airflow.compat.features import DEADLINES
from lakehouse_airflow.compat.versions import has, line_text

log = logging.getLogger(__name__)

#: Value of `retry_exponential_backoff`: the factor 2. Before Airflow 3.2 the argument is a flag.
RETRY_BACKOFF: Any = 2 if has((3, 2)) else True
#: Start date of DAGs that need none. Airflow 2 refuses a DAG without a start date.
NO_START_DATE = None if has((3, 0)) else datetime(2026, 1, 1, tzinfo=UTC)


def allowed_run_types(*names: str) -> dict[str, Any]:
    """Return the argument that limits a DAG to types of runs. It is empty before Airflow 3.2, which has no limit."""
    if not has((3, 2)):
        return {}
    return {"allowed_run_types": [name for name in names if name != "operator_triggered" or has((3, 3))]}


def deadline_after(
    interval: timedelta, callback: Callable[..., Awaitable[None]], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the DAG argument for a deadline after a run was queued. It is empty if Airflow has no deadlines.

    Args:
        interval: Time between the queuing of a run and its deadline.
        callback: Coroutine function that the triggerer calls when a run is late.
        arguments: Keyword arguments of the callback.
    """
    if not DEADLINES.is_present:
        log.info("the DAG gets no deadline: %s need Airflow %s or newer", DEADLINES.name, line_text(DEADLINES.since))
        return {}
    names: Any = import_module("lakehouse_airflow.compat")
    alert = names.DeadlineAlert(
        reference=names.DeadlineReference.DAGRUN_QUEUED_AT,
        interval=interval,
        callback=names.AsyncCallback(callback, kwargs=dict(arguments)),
    )
    return {"deadline": alert}


def page_prefix() -> str:
    """Return the start of page URLs. Since Airflow 3.3 the UI resolves relative URLs, so the prefix is empty.

    Before, browsers refuse them, and the prefix is the path of Airflow's base URL.
    """
    if has((3, 3)):
        return ""
    names: Any = import_module("lakehouse_airflow.compat")
    return f"{urlsplit(names.conf.get('api', 'base_url', fallback='')).path.rstrip('/')}/"
