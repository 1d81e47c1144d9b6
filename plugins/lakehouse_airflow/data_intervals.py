"""Determines the data interval of a run from its params or from Airflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, cast
from zoneinfo import ZoneInfo

import pendulum

from lakehouse.errors import UserError
from lakehouse_airflow.compat import (
    DAG,
    AssetOrTimeSchedule,
    BaseOperator,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
    conf,
    cron_timetables,
    module_of,
    trigger_interval,
)

log = logging.getLogger(__name__)

START, END = "interval_start", "interval_end"
#: Types of runs that asset events start. Airflow 2 has datasets.
ASSET_TRIGGERED = ("asset_triggered", "dataset_triggered")
#: Sentence for the documentation of DAGs that support backfills.
BACKFILL_DATES = (
    "Write the dates of a backfill with their offset, such as `--from-date 2026-03-01T00:00:00+00:00`: without an "
    "offset they are in Airflow's time zone, and a backfill may lack its last day."
)
_REMEDY = (
    "Airflow 3 converts a cron string to CronTriggerTimetable, which has no data interval: write "
    f"schedule=CronDataIntervalTimetable('@daily', timezone='UTC'), from {module_of('CronDataIntervalTimetable')}."
)


def params_interval(context: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the interval in the run's params as ISO 8601 in UTC, or None if the params contain no interval.

    A bound without an offset is in Airflow's time zone, like the dates of `airflow backfill create`.

    Raises UserError if only one bound is given.
    """
    params = context.get("params") or {}
    start, end = params.get(START), params.get(END)
    if bool(start) != bool(end):
        raise UserError(f"the run's params contain {START}={start!r} and {END}={end!r}: give both, or none")
    return (_utc(START, start), _utc(END, end)) if start and end else None


def run_interval(context: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the run's own data interval in ISO 8601, UTC.

    The result is None if an asset event or a manual trigger without a date started the run. Raises UserError for an
    empty interval, which Airflow creates for schedules such as a cron string.
    """
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        return None
    bounds = _utc(START, start), _utc(END, end)
    if bounds[0] >= bounds[1]:
        raise UserError(
            f"the data interval of this run is empty: it starts and ends at {bounds[0]}. {_REMEDY} For this run, give "
            f"the params {START} and {END}"
        )
    return bounds


def required_interval(context: Mapping[str, Any]) -> tuple[str, str]:
    """Return the interval in the params, otherwise the run's own. Raise UserError if there is none."""
    interval = params_interval(context) or run_interval(context)
    if interval is None:
        raise UserError(
            f"this run needs a data interval and has none. Give the params {START} and {END}, or trigger it with a "
            "logical date"
        )
    return interval


def data_interval(context: Mapping[str, Any], *, by_interval: bool) -> tuple[str, str] | None:
    """Return the data interval of a run if its job needs one (`by_interval`), otherwise None.

    Raises UserError if the interval is missing, or if the params contain an interval that the job does not use.
    """
    if by_interval:
        return required_interval(context)
    if params_interval(context) is not None:
        raise UserError(
            "the run's params contain a data interval, but the table's ingest.path has no {start:...} or {end:...}: "
            "the table is ingested by checkpoint, which needs no interval"
        )
    return None


def check_timetable(dag: DAG | None, *, by_interval: bool, what: str) -> None:
    """Raise UserError if the task or DAG `what` needs data intervals and the DAG's schedule creates empty ones.

    The error becomes a DAG import error. Without it, a run would work on the whole table.
    """
    if by_interval and dag is not None and has_empty_intervals(dag.timetable):
        raise UserError(
            f"{what} of DAG {dag.dag_id!r} has by_interval=True, but the runs of its schedule have empty data "
            f"intervals, so it would work on the whole table. {_REMEDY}"
        )


class IntervalMixin(BaseOperator):
    """Mixin for operators with `by_interval`.

    It refuses schedules without data intervals when the operator is assigned to a DAG.
    """

    by_interval: bool = False

    @property
    def dag(self) -> DAG:
        """The DAG of the task."""
        return super().dag

    @dag.setter
    def dag(self, dag: DAG | None) -> None:
        # Airflow's own setter also adds the task to the DAG.
        BaseOperator.dag.fset(self, dag)
        self._check_schedule(dag)

    def _check_schedule(self, dag: DAG | None) -> None:
        check_timetable(dag, by_interval=self.by_interval, what=f"task {self.task_id!r}")

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a partial operator for Airflow's task mapping, and check its arguments like the operator."""
        made = super().partial(**kwargs)
        dag = made.kwargs.get("dag")
        check_timetable(dag, by_interval=bool(kwargs.get("by_interval")), what=f"task {kwargs.get('task_id')!r}")
        return made


def has_empty_intervals(timetable: Any) -> bool:
    """Return whether scheduled runs of a timetable have an empty data interval or no data interval."""
    if isinstance(timetable, AssetOrTimeSchedule):
        return has_empty_intervals(timetable.timetable)
    if isinstance(timetable, MultipleCronTriggerTimetable):
        return any(has_empty_intervals(one) for one in cron_timetables(timetable))
    return isinstance(timetable, CronTriggerTimetable | DeltaTriggerTimetable) and not trigger_interval(timetable)


def is_backfill(context: Mapping[str, Any]) -> bool:
    """Return whether the run belongs to a backfill."""
    run_type = str(getattr(context.get("dag_run"), "run_type", ""))
    return run_type.rpartition(".")[2].lower() in ("backfill", "backfill_job")


def is_asset_triggered(context: Mapping[str, Any]) -> bool:
    """Return whether asset events started the run; such a run has no data interval."""
    run_type = str(getattr(context.get("dag_run"), "run_type", ""))
    return run_type.rpartition(".")[2].lower() in ASSET_TRIGGERED


def whole_periods(start: str, end: str) -> tuple[str, str]:
    """Round an interval to whole days in UTC, or to whole hours if it is shorter than a day. `end` is exclusive.

    The result starts with the day or hour of `start`, ends before that of `end`, and contains at least one.
    """
    first, last = (datetime.fromisoformat(bound).astimezone(UTC) for bound in (start, end))
    day = timedelta(days=1)
    first, last = (moment.replace(minute=0, second=0, microsecond=0) for moment in (first, last))
    if datetime.fromisoformat(end) - datetime.fromisoformat(start) < day:
        return first.isoformat(), max(last, first + timedelta(hours=1)).isoformat()
    first, last = (moment.replace(hour=0) for moment in (first, last))
    return first.isoformat(), max(last, first + day).isoformat()


def airflow_zone() -> tzinfo:
    """Return the time zone of Airflow (`[core] default_timezone`), in which it reads dates without an offset."""
    name = conf.get("core", "default_timezone", fallback="utc")
    if name.lower() == "system":
        return cast(tzinfo, pendulum.now("local").tzinfo)
    return ZoneInfo("UTC" if name.lower() == "utc" else name)


def _utc(name: str, moment: str | datetime) -> str:
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise UserError(f"the run's params contain {name}={moment!r}, which is not a time in ISO 8601") from None
    if parsed.tzinfo is not None:
        return parsed.astimezone(UTC).isoformat()
    zone = airflow_zone()
    placed = parsed.replace(tzinfo=zone).astimezone(UTC).isoformat()
    log.info("%s=%s has no offset, so it is in Airflow's time zone %s: %s", name, moment, zone, placed)
    return placed
