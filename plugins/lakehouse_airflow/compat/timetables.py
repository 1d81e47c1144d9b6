"""Differences between the timetables of Airflow's versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def trigger_interval(timetable: Any) -> Any:
    """Return how long the data intervals of a trigger timetable are. The attribute is private before Airflow 3.2."""
    return timetable.interval if hasattr(timetable, "interval") else timetable._interval


def cron_timetables(timetable: Any) -> Sequence[Any]:
    """Return the timetables of a MultipleCronTriggerTimetable. The attribute is private before Airflow 3.2."""
    timetables: Sequence[Any] = timetable.timetables if hasattr(timetable, "timetables") else timetable._timetables
    return timetables


def may_be_periodic(model: Any) -> bool:
    """Return False if a DagModel row shows that the DAG has no runs by time. Before Airflow 3.3 it shows nothing."""
    return bool(getattr(model, "timetable_periodic", True))


def is_periodic(timetable: Any) -> bool:
    """Return whether a timetable has runs by time."""
    return bool(timetable.can_be_scheduled and timetable.periodic)


def next_run(timetable: Any, previous: Any, restriction: Any) -> Any:
    """Return the run after `previous`, or the first one if it is None."""
    if hasattr(timetable, "next_dagrun_info_v2"):
        return timetable.next_dagrun_info_v2(last_dagrun_info=previous, restriction=restriction)
    last = None if previous is None else previous.data_interval
    return timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
