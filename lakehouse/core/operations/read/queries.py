"""Query types, one dataclass each, and the request that combines a query with columns and filters.

Snapshot          the table as it is now
TimeTravel        the table as of an instant (TL-6.5)
CompletedUpTo     the table with all writes that completed up to a time
EventTimeTravel   the version that holds all events before an event time
ReadOptimized     base files only, of one of the versions above
Incremental       rows written by a range of commits (TL-6.7)
Changes           rows inserted, updated and deleted by a range of commits (DATA-6)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from lakehouse.errors import UserError
from lakehouse.model.predicate import Predicate
from lakehouse.spec.options.write import WritePolicy

#: Start of a range without a lower bound.
EARLIEST = "earliest"
READ_BUDGET = WritePolicy().memory_budget_bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table as it is now."""


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """The table as it was at an instant: digits of an instant time, or an ISO 8601 string."""

    instant: str


@dataclass(frozen=True, slots=True)
class CompletedUpTo:
    """The table with all writes that completed up to a time, and no others."""

    completion: str


@dataclass(frozen=True, slots=True)
class EventTimeTravel:
    """The oldest version with all events before a time: an ISO 8601 string or a datetime, UTC without a zone."""

    event_time: str | datetime


Version = Snapshot | TimeTravel | CompletedUpTo | EventTimeTravel
SNAPSHOT = Snapshot()


@dataclass(frozen=True, slots=True)
class ReadOptimized:
    """Base files only: a faster read that omits the changes since the last compaction of each file group."""

    version: Version = SNAPSHOT


@dataclass(frozen=True, slots=True)
class Incremental:
    """Rows that the commits completed in (begin, end] wrote, in their newest version.

    Bounds are completion times, for tables of version 6 requested times. `begin` may be "earliest". If `begin` is None,
    only the last commit is read.
    """

    begin: str | None = None
    end: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Every insert, update and delete of the commits completed in (begin, end]; bounds as for `Incremental`."""

    begin: str | None = None
    end: str | None = None


RowQuery = Version | ReadOptimized | Incremental
Query = RowQuery | Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """A query with the columns, the condition and the limits of the read.

    Attributes:
        query: The rows or changes to read.
        columns: Columns of the result; all if None. For `Changes` these are columns of the before and after images.
        where: Condition on rows. For `Changes`, a change is kept if its before or its after image meets the condition.
        memory_budget_bytes: Memory that one task may use to merge log files.
        skips_damage: Skip the rows of committed files that are missing or damaged, instead of raising an error.
        trusts_keys: Use the record index even if nothing proves that keys are unique.
    """

    query: Query = SNAPSHOT
    columns: tuple[str, ...] | None = None
    where: str | Predicate | None = None
    memory_budget_bytes: int = READ_BUDGET
    skips_damage: bool = False
    trusts_keys: bool = False


def instant_text(text: str | datetime) -> str:
    """Return a time as instant digits.

    Accepts instant digits, which are returned unchanged, ISO 8601 such as 2026-01-31 or 2026-01-31 10:00:00[.123], and
    a datetime, UTC without a zone. Raises UserError for another string.
    """
    if isinstance(text, datetime):
        moment = text if text.tzinfo is None else text.astimezone(UTC)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
    if re.fullmatch(r"\d{14}|\d{17}", text):
        return text
    match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?(?:Z|\+00:00)?", text)
    if match is None:
        raise UserError(f"{text!r} is not a time; write 20260131100000000, 2026-01-31 or 2026-01-31 10:00:00.000")
    day, time = match.groups("00")[:3], match.groups("00")[3:6]
    try:
        datetime.fromisoformat(f"{'-'.join(day)}T{':'.join(time)}")
    except ValueError as error:
        raise UserError(f"{text!r} is not a time: {error}") from error
    return "".join((*day, *time)) + (match.group(7) or "").ljust(3, "0")[:3]


def range_bound(text: str | None) -> str | None:
    """Return a bound of a range as instant digits; None and "earliest" are returned unchanged."""
    return text if text is None or text == EARLIEST else instant_text(text)
