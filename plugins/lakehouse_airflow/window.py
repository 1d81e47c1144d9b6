"""Which data interval a run is about."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lakehouse.errors import UserError

START, END = "interval_start", "interval_end"


def data_interval(context: Mapping[str, Any], *, by_interval: bool) -> tuple[str, str] | None:
    """Return the bounds of the interval in ISO 8601, UTC: those of the params, else of the run, else None.

    A run has no interval of its own when it was triggered through the API without a date, or when the schedule gives it
    an empty one. Raises UserError if the params give one bound only, or give an interval to a job that takes none.
    """
    params = context.get("params") or {}
    start, end = params.get(START), params.get(END)
    if bool(start) != bool(end):
        raise UserError(f"the run's params give {START}={start!r} and {END}={end!r}: give both, or none")
    if start and end:
        if not by_interval:
            raise UserError(
                "the run's params give a data interval, but the table's ingest.path has no {start:...} or {end:...}: "
                "it is read by checkpoint, which needs no interval"
            )
        return _utc(START, start), _utc(END, end)
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if not by_interval or start is None or end is None or start >= end:
        return None
    return _utc(START, start), _utc(END, end)


def is_backfill(context: Mapping[str, Any]) -> bool:
    """Whether the run is one of a backfill."""
    run_type = str(getattr(context.get("dag_run"), "run_type", ""))
    return run_type.rpartition(".")[2].lower() in ("backfill", "backfill_job")


def whole_days(start: str, end: str) -> tuple[str, str]:
    """Return the interval from the day of `start` up to the day of `end`, UTC; at least the day of `start`."""
    first, last = (datetime.fromisoformat(bound).astimezone(UTC) for bound in (start, end))
    first, last = (moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in (first, last))
    return first.isoformat(), max(last, first + timedelta(days=1)).isoformat()


def _utc(name: str, moment: str | datetime) -> str:
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise UserError(f"the run's params give {name}={moment!r}, which is no time in ISO 8601") from None
    return (parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)).isoformat()
