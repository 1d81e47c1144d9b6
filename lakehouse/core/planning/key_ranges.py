"""Column ranges of data files in commit metadata, so that a reader can skip files without opening them.

The value of the extra metadata key is JSON {relative path: {column: [min, max, nulls]}}. Dates and times are ISO 8601
strings, decimals are strings with full scale. Other readers ignore the key. Commits of other writers lack it, and so do
commits of a table whose metadata table has the index partition `column_stats`, from which readers take ranges.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakehouse.core.expressions.literals import literal
from lakehouse.core.planning.predicate import Range
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import WriteStat
from lakehouse.model.document import parse_json

RANGES_KEY = "lakehouse.column_ranges"
MAX_COLUMNS = 32
_LONGEST_TEXT = 64
#: Maximum number of files whose ranges are searched in the JSON string. For more files the whole JSON is parsed.
_SEARCHED = 32


def json_range(low: Any, high: Any, nulls: int) -> Range | None:
    """Return (min, max, nulls) as JSON values, or None if JSON cannot represent the bounds exactly and briefly."""
    values = [_json_value(low), _json_value(high)]
    return None if None in values else (values[0], values[1], nulls)


def ranges_extra(stats: Iterable[WriteStat], indexed: Collection[str] | None) -> dict[str, str]:
    """Return the extra metadata with the ranges of a commit's files; empty if the metadata table stores them.

    `indexed` are the columns whose bounds the metadata table gets with the commit; None without `column_stats`.
    """
    return {RANGES_KEY: encode_ranges(stats)} if indexed is None else {}


def encode_ranges(stats: Iterable[WriteStat]) -> str:
    """Return the ranges of a commit's files as compact JSON."""
    return json.dumps({s.path: {c: list(r) for c, r in s.ranges.items()} for s in stats}, separators=(",", ":"))


def decode_ranges(text: str | None, schema: pa.Schema) -> Mapping[str, Mapping[str, Range]]:
    """Return (min, max, nulls) in the columns' types, by path and column. Return {} if the commit has no ranges.

    A range is omitted if the type of the column has changed to one with another order, such as a number to a string.
    """
    try:
        return {path: typed_ranges(columns, schema) for path, columns in stored_ranges(text).items()}
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise _unreadable(text, error) from error


def stored_ranges(text: str | None, paths: Collection[str] | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Return [min, max, nulls] as stored JSON values, by path and column, for some files or (None) for all files.

    `typed_bounds` converts them to the type of the column.
    """
    if not text:
        return {}
    try:
        if paths is None or len(paths) > _SEARCHED:
            document: Mapping[str, Any] = parse_json(text)
            return document if paths is None else {path: document[path] for path in paths if path in document}
        return {path: columns for path in paths if (columns := _ranges_at(text, path)) is not None}
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(text, error) from error


def typed_bounds(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert stored bounds to the type of a column.

    The result is null for None, and for bounds that sort differently as strings.

    Raises CorruptTableError for a value that the type cannot represent.
    """
    if pa.types.is_string(kind):
        values = [value if isinstance(value, str) else None for value in values]
    try:
        return pa.array(values, kind)
    except (ValueError, TypeError, pa.ArrowException):
        # Dates, times and decimals are stored as strings.
        typed = {value: None if value is None else literal(value, kind) for value in set(values)}
        return pa.array([typed[value] for value in values], kind)


def _unreadable(text: str | None, error: Exception) -> CorruptTableError:
    return CorruptTableError(f"{RANGES_KEY} of a commit is unreadable ({error!r}): {(text or '')[:120]!r}")


def _ranges_at(text: str, path: str) -> Any:
    """Return the JSON value of one path without parsing the others; None if there is none."""
    key = f"{json.dumps(path)}:"
    at = text.find(key)
    # A key follows a brace or a comma; the same characters inside another string follow a backslash.
    while at > 0 and text[at - 1] not in "{,":
        at = text.find(key, at + 1)
    return None if at < 0 else json.JSONDecoder().raw_decode(text, at + len(key))[0]


def typed_ranges(columns: Mapping[str, Any], schema: pa.Schema) -> dict[str, Range]:
    """Convert the [min, max, nulls] of each column from JSON values to tuples with the column's type."""
    kinds = {field.name: field.type for field in schema}
    return {
        name: (literal(low, kinds[name]), literal(high, kinds[name]), nulls)
        for name, (low, high, nulls) in columns.items()
        if name in kinds and not (pa.types.is_string(kinds[name]) and not isinstance(low, str))
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return None
