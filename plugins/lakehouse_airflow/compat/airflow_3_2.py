"""Interface functions for tasks on Airflow 3.2 and newer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import InletEventsAccessor

from lakehouse_airflow.compat.airflow_3 import is_in_task_runner
from lakehouse_airflow.compat.events import EmittedEvent


def emitted_events(asset: Asset, limit: int, since: datetime | None) -> list[EmittedEvent]:
    """Return the newest events of an asset, or the first ones after a time.

    Empty if the process runs outside of Airflow's task runner, where no event can be read.
    """
    if not is_in_task_runner():
        return []
    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).limit(limit)
    if since is None:
        events.ascending(False)
    else:
        events.ascending(True).after(since.isoformat())
    return [EmittedEvent(extra=event.extra or {}, dag_id=event.source_dag_id or "") for event in events]


def add_keyed_events(accessor: Any, extra: Mapping[str, Any], names: Sequence[str]) -> None:
    """Emit an asset event per partition, with the partition name as key. For Airflow 3.3."""
    accessor.extra = dict(extra)
    accessor.add_partitions(list(names))
