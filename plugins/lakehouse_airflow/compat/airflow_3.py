"""Interface functions for tasks on Airflow 3."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowRuntimeError

from lakehouse_airflow.compat.events import TriggeringEvent

log = logging.getLogger(__name__)

#: Module of Airflow that connects a task with the API server.
_TASK_RUNNER = "airflow.sdk.execution_time.task_runner"


def is_in_task_runner() -> bool:
    """Return whether this process can request values from Airflow's API server."""
    return hasattr(sys.modules.get(_TASK_RUNNER), "SUPERVISOR_COMMS")


def has_dag_processor() -> bool:
    """Return whether DAG files are parsed by a component with its own heartbeat."""
    return True


def health_url() -> str:
    """Return the address of the health of Airflow's components."""
    server = conf.get("core", "execution_api_server_url", fallback="").partition("/execution")[0]
    server = server or conf.get("api", "base_url", fallback="") or "http://localhost:8080"
    return f"{server.rstrip('/')}/api/v2/monitor/health"


def triggering_events(context: Mapping[str, Any]) -> list[TriggeringEvent]:
    """Return the asset events that started a run."""
    events = context.get("triggering_asset_events") or {}
    return [
        TriggeringEvent(name=str(event.asset.name), uri=str(event.asset.uri), extra=getattr(event, "extra", None) or {})
        for asset in events
        for event in events[asset]
    ]


def first_reschedule(context: Mapping[str, Any]) -> datetime | None:
    """Return when a task was rescheduled for the first time, or None before that."""
    moment: datetime | None = context["ti"].get_first_reschedule_date(context)
    return moment


def run_state(context: Mapping[str, Any], dag_id: str, run_id: str) -> str | None:
    """Return the state of a DAG run, or None if this Airflow does not know the run."""
    try:
        return str(context["ti"].get_dagrun_state(dag_id, run_id))
    except AirflowRuntimeError as error:
        # The run may belong to another Airflow deployment.
        log.warning("the state of the run %s/%s is unknown: %s", dag_id, run_id, error)
        return None
