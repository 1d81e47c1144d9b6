"""Services of some partitions: those that a run names, or those of the days of its data interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import JobCommand
from lakehouse.spec.options.clustering import PARTITIONS
from lakehouse.spec.options.compaction import COMPACTED_PARTITIONS

#: The services that can be narrowed, and the option that does it.
BY_PARTITION = {"compaction": COMPACTED_PARTITIONS, "clustering": PARTITIONS}
_DAY = re.compile(r"(?<!\d)(\d{4})[/-]?(\d{2})(?:[/-]?(\d{2}))?(?!\d)")
_NAME = re.compile(r"(^|/)[^/=]*=")


def narrowing(service: str, table: Table, command: JobCommand) -> dict[str, str] | str:
    """Return the options that narrow a service to what the command asks for, or why there is nothing to do.

    Raises UserError for a service that works on whole tables, a partition that is not there, and for an interval where
    no partition has a day.
    """
    if not command.partitions and command.interval is None:
        return {}
    if service not in BY_PARTITION:
        raise UserError(
            f"{service} works on whole tables; {' and '.join(BY_PARTITION)} can be narrowed to partitions",
            service=service,
        )
    known = table.partitions()
    chosen = list(command.partitions)
    missing = next((partition for partition in chosen if partition not in known), None)
    if missing is not None:
        raise UserError(f"table {table.name} has no partition {missing!r}", partition=missing)
    if command.interval is not None:
        chosen = days_of(chosen or known, command.interval)
    if not chosen:
        return f"no partition is of the interval {command.interval_start} to {command.interval_end}"
    comma = next((partition for partition in chosen if "," in partition), None)
    if comma is not None:
        raise UserError(f"partition {comma!r} cannot be chosen: lists of partitions are separated by commas")
    return {BY_PARTITION[service]: ",".join(chosen)}


def days_of(partitions: Sequence[str], interval: tuple[datetime, datetime]) -> list[str]:
    """Return the partitions whose day (or month, if that is all they name) meets a half-open interval, UTC.

    Raises UserError if no partition names a day.
    """
    days = {partition: found for partition in partitions if (found := _day(partition)) is not None}
    if partitions and not days:
        raise UserError(
            f"no partition names a day, such as {partitions[0]!r}; a data interval chooses partitions by theirs",
            partition=partitions[0],
        )
    start, end = (bound.astimezone(UTC).replace(tzinfo=None) for bound in interval)
    return [partition for partition, (first, after) in days.items() if first < end and after > start]


def _day(partition: str) -> tuple[datetime, datetime] | None:
    """Return the first moment of what a partition path names, and the first one after it."""
    match = _DAY.search(_NAME.sub(r"\1", partition))
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), match[3]
    try:
        first = datetime(year, month, int(day or 1))
    except ValueError:
        return None
    if (year, month) == (9999, 12) and day in (None, "31"):
        # Rows without an end often have this day, and no time comes after it.
        return first, datetime.max
    if day:
        return first, first + timedelta(days=1)
    return first, datetime(year + month // 12, month % 12 + 1, 1)
