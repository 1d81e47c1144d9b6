"""Event times of rows: columns that may contain them, and their range in milliseconds since 1970, UTC.

Write statistics of Hudi have milliseconds. Hudi reads integers by their number of digits: ten as seconds and thirteen
as milliseconds. We do the same for neighbouring numbers of digits, and read microseconds and nanoseconds too, for which
Hudi reports nothing.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UserError, nearest

_OPTION = "hoodie.payload.event.time.field"
_PER_MS = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}
_MS_PER_DAY = 86_400_000
_ZONED = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
# Upper bounds of integers that are read as seconds, milliseconds and microseconds, with factor and divisor.
_DIGITS = ((10**11, 1_000, 1), (10**14, 1, 1), (10**17, 1, 1_000))
#: Years 1 to 9999. Readers cannot represent dates outside of them.
_LEAST_MS, _GREATEST_MS = (int(datetime(*day, tzinfo=UTC).timestamp()) * 1000 for day in ((1, 1, 1), (9999, 12, 31)))


def check_event_time(schema: pa.Schema, name: str) -> None:
    """Raise UserError if `schema` has no column of this name, or one that cannot contain times."""
    top, *inner = name.split(".")
    if top not in schema.names:
        hint = nearest(top, schema.names)
        raise UserError(
            f"the event time column {name!r} ({_OPTION}) is not among the columns of the batch.{hint} "
            "Provide it, or set hoodie.write.track.event.time.watermark=false",
            column=name,
        )
    kind = schema.field(top).type
    for part in inner:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            raise UserError(f"the event time column {name!r} ({_OPTION}): {kind} has no field {part!r}", column=name)
        kind = kind.field(part).type
    if not _may_be_a_time(kind):
        raise UserError(
            f"column {name!r} ({_OPTION}) has type {kind}, which cannot contain event times; use a "
            "timestamp, a date, an integer since 1970 or ISO 8601 text",
            column=name,
        )


def event_time_range(rows: pa.Table, name: str) -> tuple[int, int] | None:
    """Return the minimum and maximum event time of the rows; None if all are null.

    Raises UserError for a string that is not a time, and for a time before the year 1 or after 9999.
    """
    top, *inner = name.split(".")
    column = rows.column(top)
    if inner:
        column = pc.struct_field(column, inner)
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if _is_text(kind):
        column = _parsed(column, name)
        kind = column.type
    bounds = pc.min_max(column)
    low, high = bounds["min"], bounds["max"]
    if not low.is_valid:
        return None
    times = sorted((_milliseconds(low, kind), _milliseconds(high, kind)))
    if times[0] < _LEAST_MS or times[1] > _GREATEST_MS:
        raise UserError(
            f"column {name!r} ({_OPTION}) holds a time outside of the years 1 to 9999: "
            f"{times[0] if times[0] < _LEAST_MS else times[1]} ms since 1970",
            column=name,
        )
    return times[0], times[1]


class EventTimes:
    """The minimum and maximum event time of rows that are added piece by piece; empty if there is no column."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.range: tuple[int, int] | None = None

    def add(self, rows: pa.Table) -> None:
        """Include the event times of these rows."""
        if self._name and rows.num_rows:
            self.range = joined(self.range, event_time_range(rows, self._name))


def joined(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the range that includes both; None is the empty range."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _may_be_a_time(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind) or _is_text(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _milliseconds(value: pa.Scalar, kind: pa.DataType) -> int:
    if pa.types.is_timestamp(kind):
        number = int(value.value)
        return number * 1000 if kind.unit == "s" else number // _PER_MS[kind.unit]
    if pa.types.is_date(kind):
        return int(value.value) * (_MS_PER_DAY if pa.types.is_date32(kind) else 1)
    number = int(value.as_py())
    for limit, factor, divisor in _DIGITS:
        if abs(number) < limit:
            return number * factor // divisor
    return number // 1_000_000


def _parsed(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return strings as times in UTC; empty strings are null."""
    # Fast path: usually all strings have the same format, and then this is several times faster.
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        with suppress(pa.ArrowInvalid):
            return column.cast(kind)
    texts = pc.utf8_trim_whitespace(column)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    zoned = pc.match_substring_regex(texts, _ZONED)
    try:
        aware = pc.if_else(zoned, texts, None).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        naive = pc.if_else(zoned, None, texts).cast(pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise UserError(
            f"column {name!r} ({_OPTION}) has a string that is not an ISO 8601 time: {error}", column=name
        ) from None
    return pc.coalesce(aware, naive)
