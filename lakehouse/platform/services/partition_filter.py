"""Select the partitions of a service run: the partitions of the command, or of its data interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.core.planning.partition_time import partition_time
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.services import require_by_partition, service_spec

#: A month, a day, or an hour behind the day in the same level of the path.
_DAY = re.compile(r"(?<!\d)(\d{4})[/-]?(\d{2})(?:[/-]?(\d{2})(?:[ T_-]?(\d{2}))?)?(?!\d)")
_HOUR, _HOUR_NAME = re.compile(r"\d{1,2}"), re.compile(r"(.*_)?(hour|hr|hh|h)", re.IGNORECASE)
_HOURS = 24
_EPOCH = datetime(1970, 1, 1)
_NAME = re.compile(r"(^|/)[^/=]*=")


@dataclass(frozen=True, slots=True)
class NoPartition:
    """The table has no partition of the data interval, so there is nothing to do; `reason` contains the interval."""

    reason: str


def selected_partitions(service: str, table: Table, command: ServiceCommand) -> tuple[str, ...] | NoPartition:
    """Return the paths of the partitions to which a command limits a service; empty means the whole table.

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
        chosen = partitions_in(chosen or existing, command.interval, table.config.keys)
    if not chosen:
        return NoPartition(f"no partition is in the interval {command.interval_start} to {command.interval_end}")
    return tuple(chosen)


def partitions_in(
    partitions: Sequence[str], interval: tuple[datetime, datetime], keys: KeyConfig | None = None
) -> list[str]:
    """Return the partitions whose hour, day or month overlaps a half-open interval in UTC.

    Args:
        partitions: Relative paths of partitions.
        interval: Start and end with time zones.
        keys: Key configuration of the table: its time format and zone, and the names of levels without a key.

    Raises:
        UserError: No partition path contains a date.
    """
    spans = {partition: span for partition in partitions if (span := _span(partition, keys)) is not None}
    if partitions and not spans:
        raise UserError(
            f"no partition path contains a date, for example {partitions[0]!r}; a data interval selects partitions by "
            "their dates. Name the partitions instead",
            partition=partitions[0],
        )
    start, end = (bound.astimezone(UTC).replace(tzinfo=None) for bound in interval)
    return [partition for partition, (first, after) in spans.items() if first < end and after > start]


def _span(partition: str, keys: KeyConfig | None) -> tuple[datetime, datetime] | None:
    """Return the start and end in UTC of the hour, day or month in a path, or None if it contains no date."""
    if keys is not None and keys.timestamp is not None:
        time = partition_time(partition, keys)
        if time is not None:
            return _EPOCH + timedelta(milliseconds=time.start_ms), _EPOCH + timedelta(milliseconds=time.end_ms)
    match = _DAY.search(_NAME.sub(r"\1", partition))
    if match is None:
        return None
    year, month, day, hour = int(match[1]), int(match[2]), match[3], match[4] or _hour_level(partition, match, keys)
    try:
        first = datetime(year, month, int(day or 1))
    except ValueError:
        return None
    if day and hour and int(hour) < _HOURS:
        return _until(first + timedelta(hours=int(hour)), timedelta(hours=1))
    if day:
        return _until(first, timedelta(days=1))
    if (year, month) == (9999, 12):
        return first, datetime.max
    return first, datetime(year + month // 12, month % 12 + 1, 1)


def _until(first: datetime, length: timedelta) -> tuple[datetime, datetime]:
    # Rows without an end often contain the day 9999-12-31, which is the last day of datetime.
    return first, datetime.max if first > datetime.max - length else first + length


def _hour_level(partition: str, match: re.Match[str], keys: KeyConfig | None) -> str | None:
    """Return the value of the path level after the date if its key or partition field is named like an hour."""
    levels = partition.split("/")
    values = [_NAME.sub(r"\1", level) for level in levels]
    number = match.string.count("/", 0, match.end()) + 1
    if number >= len(levels) or match.end() != len("/".join(values[:number])):
        return None
    name, separator, _ = levels[number].partition("=")
    if not separator:
        fields = () if keys is None else keys.partition_fields
        name = fields[number] if len(fields) == len(levels) else ""
    is_hour = _HOUR_NAME.fullmatch(name) is not None and _HOUR.fullmatch(values[number]) is not None
    return values[number] if is_hour else None
