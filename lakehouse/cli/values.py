"""Formats contract values for people: rounded sizes, thousands separators, local times, durations.

The unit follows from the field name: `bytes` and `*_bytes` are sizes, `seconds` and `*_s` durations, `at`, `modified`,
`since` and `deadline` times in UTC. JSON output keeps plain numbers and UTC times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lakehouse.model.display import number_text, size_text
from lakehouse.model.texts import printable
from lakehouse.spec.quantities import duration_text

#: Maximum number of list elements in a cell.
MOST_PARTS = 10
_TIMES = frozenset({"at", "modified", "since", "deadline"})
_UTC = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(Z|\+00:00)?")
# Numeric fields that are not counts, so they get no thousands separators.
_NUMBERED = ("version", "request", "id", "port", "offset", "revision")


class Texts:
    """Converts values to strings, and collects the time zones of the converted times."""

    def __init__(self) -> None:
        self.zones: dict[str, None] = {}

    def of(self, name: str, value: Any) -> str:
        """Format the value of a field; `name` may have spaces instead of underscores."""
        field = name.replace(" ", "_").lower()
        if value is None or value == "":
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            return _number(field, value)
        if isinstance(value, str):
            return printable(self._time(field, value))
        if isinstance(value, Mapping):
            return self._list([f"{printable(str(key))}={self.of(str(key), part)}" for key, part in value.items()])
        if isinstance(value, list | tuple):
            return self._list([self.of(field, part) for part in value])
        return printable(str(value))

    def footnote(self) -> str:
        """Return a line with the time zone, or an empty string if no time was converted."""
        return f"times are in {', '.join(self.zones)}" if self.zones else ""

    def _time(self, field: str, text: str) -> str:
        match = _UTC.fullmatch(text)
        if match is None or not (match[1] or field in _TIMES):
            return text
        moment = datetime.fromisoformat(text)
        local = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone()
        self.zones[_zone(local)] = None
        return f"{local:%Y-%m-%d %H:%M:%S}"

    def _list(self, parts: list[str]) -> str:
        rest = len(parts) - MOST_PARTS
        shown = ", ".join(parts[:MOST_PARTS])
        return f"{shown} ... and {rest:,} more" if rest > 0 else shown or "-"


def header_of(name: str) -> str:
    """Return the header of a column: its name without the unit ` s`, which the displayed values contain."""
    return name.removesuffix(" s")


def verbatim(value: Any) -> str:
    """Format a stored value without rounding or shortening; control characters are escaped."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{verbatim(name)}={verbatim(part)}" for name, part in value.items()) or "-"
    return (", ".join(map(verbatim, value)) or "-") if isinstance(value, list | tuple) else printable(str(value))


def _number(field: str, value: float) -> str:
    if field == "bytes" or field.endswith("_bytes"):
        return size_text(value)
    if field == "seconds" or field.endswith(("_s", "_seconds")):
        return duration_text(round(value, 1) if abs(value) < 1 else round(value))
    if field.rpartition("_")[2] in _NUMBERED:
        return str(value)
    return number_text(value)


def _zone(local: datetime) -> str:
    """Return the time zone of a local time, such as `CET (UTC+01:00)`."""
    offset = f"{local:%z}"
    return "UTC" if offset == "+0000" else f"{local.tzname()} (UTC{offset[:3]}:{offset[3:5]})"
