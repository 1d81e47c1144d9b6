"""Select the partitions of a service run: those that the command names, or those of its data interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import JobCommand
from lakehouse.spec.services import require_by_partition, service_spec

_DAY = re.compile(r"(?<!\d)(\d{4})[/-]?(\d{2})(?:[/-]?(\d{2}))?(?!\d)")
_NAME = re.compile(r"(^|/)[^/=]*=")


@dataclass(frozen=True, slots=True)
class NoPartition:
    """The table has no partition of the data interval, so there is nothing to do; `reason` names the interval."""

    reason: str


def selected_partitions(service: str, table: Table, command: JobCommand) -> tuple[str, ...] | NoPartition:
    """Return the paths of the partitions to which a command limits a service, empty for the whole table.

    Raises UserError for a service that works on whole tables, for a partition that does not exist, and for an interval
    if no partition path contains a date.
    """
    if not command.partitions and command.interval is None:
        return ()
    require_by_partition(service_spec(service))
    existing = table.partitions()
    chosen = list(command.partitions)
    missing = next((partition for partition in chosen if partition not in existing), None)
    if missing is not None:
        raise UserError(f"table {table.name} has no partition {missing!r}", partition=missing)
    if command.interval is not None:
        chosen = partitions_in(chosen or existing, command.interval)
    if not chosen:
        return NoPartition(f"no partition is in the interval {command.interval_start} to {command.interval_end}")
    return tuple(chosen)


def partitions_in(partitions: Sequence[str], interval: tuple[datetime, datetime]) -> list[str]:
    """Return the partitions whose day, or month if the path has no day, overlaps a half-open interval in UTC.

    Raises UserError if no partition path contains a date.
    """
    days = {partition: found for partition in partitions if (found := _day(partition)) is not None}
    if partitions and not days:
        raise UserError(
            f"no partition path contains a date, for example {partitions[0]!r}; a data interval selects partitions by "
            "their dates. Name the partitions instead",
            partition=partitions[0],
        )
    start, end = (bound.astimezone(UTC).replace(tzinfo=None) for bound in interval)
    return [partition for partition, (first, after) in days.items() if first < end and after > start]


def _day(partition: str) -> tuple[datetime, datetime] | None:
    """Return the begin and the end of the day or month that a partition path names; None without a date."""
    match = _DAY.search(_NAME.sub(r"\1", partition))
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), match[3]
    try:
        first = datetime(year, month, int(day or 1))
    except ValueError:
        return None
    if (year, month) == (9999, 12) and day in (None, "31"):
        # Rows without an end often have this day, and datetime has no later one.
        return first, datetime.max
    if day:
        return first, first + timedelta(days=1)
    return first, datetime(year + month // 12, month % 12 + 1, 1)
