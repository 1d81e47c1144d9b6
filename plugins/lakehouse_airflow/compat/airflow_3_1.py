"""Interface functions for tasks on Airflow 3.0 and 3.1."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import InletEventsAccessors

from lakehouse_airflow.compat.airflow_3 import is_in_task_runner
from lakehouse_airflow.compat.events import EmittedEvent


def emitted_events(asset: Asset, limit: int, since: datetime | None) -> list[EmittedEvent]:
    """Return the newest events of an asset, or the first ones after a time.

    These versions return all events, oldest first. Empty if the process runs outside of
    Airflow's task runner, where no event can be read.
    """
    if not is_in_task_runner():
        return []
    events = list(InletEventsAccessors([asset])[asset])
    chosen = events[: -limit - 1 : -1] if since is None else [one for one in events if one.timestamp > since][:limit]
    return [EmittedEvent(extra=event.extra or {}, dag_id=event.source_dag_id or "") for event in chosen]
