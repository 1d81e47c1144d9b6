"""Classes and functions of the interface for Airflow 2.11, which has datasets instead of assets.

Tasks of Airflow 2 can read Airflow's database.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.configuration import conf
from airflow.datasets import Dataset, DatasetAlias
from airflow.models.dagrun import DagRun
from airflow.models.dataset import DatasetEvent, DatasetModel
from airflow.models.taskreschedule import TaskReschedule
from airflow.timetables.datasets import DatasetOrTimeSchedule
from airflow.utils.session import create_session

from lakehouse_airflow.compat.events import EmittedEvent, TriggeringEvent


class Asset(Dataset):
    """Dataset with the arguments and the name of an Airflow 3 asset."""

    def __init__(self, *, name: str, uri: str, group: str = "", extra: dict[str, Any] | None = None) -> None:
        del name, group
        super().__init__(uri=uri, extra=extra)

    @property
    def name(self) -> str:
        """The name of the table, or the URI of other datasets."""
        return asset_name(self.uri)


class AssetAlias(DatasetAlias):
    """Dataset alias with the arguments of an Airflow 3 asset alias."""

    def __init__(self, name: str, *, group: str = "") -> None:
        del group
        super().__init__(name=name)

    # Without it, attrs would create objects of the base class that are not hashable.
    __hash__ = DatasetAlias.__hash__


class MultipleCronTriggerTimetable:
    """Stands for a timetable that Airflow 2 does not have, so that no timetable is one."""


def asset_or_time(*, timetable: Any, assets: Any) -> Any:
    """Return a schedule with runs by time and by asset events."""
    return DatasetOrTimeSchedule(timetable=timetable, datasets=assets)


def asset_name(uri: str) -> str:
    """Return the name of an asset by its URI, to which Airflow 2 adds a slash: `lakehouse://shop.orders/`."""
    scheme, _, rest = uri.partition("://")
    return rest.rstrip("/") if scheme == "lakehouse" else uri


def has_dag_processor() -> bool:
    """Return whether DAG files are parsed by a component with its own heartbeat, and not by the scheduler."""
    return bool(conf.getboolean("scheduler", "standalone_dag_processor", fallback=False))


def health_url() -> str:
    """Return the address of the health of Airflow's components."""
    server = conf.get("webserver", "base_url", fallback="") or "http://localhost:8080"
    return f"{server.rstrip('/')}/health"


def triggering_events(context: Mapping[str, Any]) -> list[TriggeringEvent]:
    """Return the dataset events that started a run."""
    events = context.get("triggering_dataset_events") or {}
    return [
        TriggeringEvent(name=asset_name(str(uri)), uri=str(uri), extra=event.extra or {})
        for uri in events
        for event in events[uri]
    ]


def emitted_events(asset: Asset, limit: int, since: datetime | None) -> list[EmittedEvent]:
    """Return the newest events of a dataset, or the first ones after a time."""
    with create_session() as session:
        events = session.query(DatasetEvent).join(DatasetModel, DatasetModel.id == DatasetEvent.dataset_id)
        events = events.filter(DatasetModel.uri == asset.uri)
        if since is None:
            events = events.order_by(DatasetEvent.timestamp.desc())
        else:
            events = events.filter(DatasetEvent.timestamp > since).order_by(DatasetEvent.timestamp)
        return [EmittedEvent(extra=row.extra or {}, dag_id=row.source_dag_id or "") for row in events.limit(limit)]


def first_reschedule(context: Mapping[str, Any]) -> datetime | None:
    """Return when a task was rescheduled for the first time, or None before that."""
    instance = context["ti"]
    with create_session() as session:
        moments = session.query(TaskReschedule.start_date).filter(
            TaskReschedule.dag_id == instance.dag_id,
            TaskReschedule.run_id == instance.run_id,
            TaskReschedule.task_id == instance.task_id,
            TaskReschedule.map_index == instance.map_index,
            TaskReschedule.try_number == instance.try_number,
        )
        moment: datetime | None = moments.order_by(TaskReschedule.id).limit(1).scalar()
    return moment


def run_state(context: Mapping[str, Any], dag_id: str, run_id: str) -> str | None:
    """Return the state of a DAG run, or None if this Airflow does not know the run."""
    del context
    with create_session() as session:
        state = session.query(DagRun.state).filter(DagRun.dag_id == dag_id, DagRun.run_id == run_id).scalar()
    return None if state is None else str(getattr(state, "value", state))
