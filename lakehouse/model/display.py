"""Short strings for people: sizes, counts, and the representation of values in a shell and in a notebook.

A class that inherits `Readable` describes itself by one line and by named facts. `repr(value)` is the line. A notebook
shows both as a small HTML table without colours, scripts or external resources, so it is readable on every background.
Programs read the attributes of a value, never these strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from html import escape
from itertools import islice
from typing import Any

from lakehouse.model.texts import printable

#: Characters in the representation of a value, which is one line.
LONGEST_LINE = 200
_LONGEST_CELL = 60
_MOST_FACTS, _MOST_ROWS, _MOST_COLUMNS = 20, 10, 8
#: Maximum number of characters that are read per string. Later characters cannot be part of the result.
_READ = 4 * LONGEST_LINE
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.8em"


def size_text(size: float) -> str:
    """Return a rounded number of bytes, in the coarsest unit in which it is at least 1:

    `1.2 MB`; 1 kB is 1000 bytes.
    """
    value, unit = float(size), 0
    # 999.95 and more would be rounded to 1000.0.
    while abs(value) >= (999.95 if unit else 1000) and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    number = f"{value:,.0f}" if unit == 0 else f"{value:,.1f}"
    return f"{number} {_UNITS[unit]}"


def time_text(ms: int, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in UTC milliseconds as a string; a time before year 1 or after year 9999 as its number."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):{pattern}}"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after 1970"


def number_text(value: float) -> str:
    """Return a number with separators of thousands; a fraction is rounded to three digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def count_text(count: int, unit: str) -> str:
    """Return a count with its unit, such as `1 file` or `2,345 entries`; `unit` is a singular noun."""
    if count == 1:
        return f"1 {unit}"
    plural = f"{unit[:-1]}ies" if unit.endswith("y") and unit[-2:-1] not in "aeiou" else f"{unit}s"
    return f"{count:,} {plural}"


def some(texts: Iterable[object], most: int = 3) -> str:
    """Return the first `most` strings, separated by commas, and the number of the others: `a, b, c and 12 more`."""
    listed = [str(text) for text in texts]
    rest = len(listed) - most
    shown = ", ".join(listed[:most])
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def sentence(*parts: str) -> str:
    """Return the non-empty parts, separated by commas."""
    return ", ".join(part for part in parts if part)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Return a string as one line of at most `longest` characters; `...` marks a shortened string."""
    is_cut = len(text) > _READ
    line = printable(" ".join(text[:_READ].split()))
    return line if len(line) <= longest and not is_cut else f"{line[: longest - 3]}..."


@dataclass(frozen=True, slots=True)
class Shown:
    """The short description of a value.

    Attributes:
        line: One line with the main facts.
        facts: Named facts, for notebooks.
        rows: The parts of the value as rows with the same names, for notebooks.
    """

    line: str
    facts: Mapping[str, object] = field(default_factory=dict)
    rows: Sequence[Mapping[str, object]] = ()


class Readable:
    """Base class of values with a short representation. Subclasses may implement `_shown`.

    A representation sends no request, computes nothing from files, and raises no error.
    """

    __slots__ = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__repr__" not in cls.__dict__:
            # A dataclass creates a representation of all fields unless the class itself has one.
            cls.__repr__ = Readable.__repr__  # type: ignore[method-assign]

    def _shown(self) -> Shown:
        """Return the facts to show; by default the fields of the dataclass."""
        values = _fields_of(self)
        line = ", ".join(f"{name}={_value(value)}" for name, value in values.items())
        return Shown(f"{_words(type(self).__name__)}: {line}" if line else _words(type(self).__name__), values)

    def __repr__(self) -> str:
        return one_line(shown(self).line)

    def _repr_html_(self) -> str:
        return html_of(shown(self))


class Condition(Readable):
    """Base class for the trigger conditions of services, which have the fields `due` and `reason`, and numbers."""

    __slots__ = ()

    def _shown(self) -> Shown:
        values = _fields_of(self)
        due, reason = values.pop("due"), values.pop("reason", "")
        return Shown(f"{'due' if due else 'not due'}: {reason}", {"due": due, "reason": reason, **values})


def shown(value: Readable) -> Shown:
    """Return the short description of a value. If its fields have wrong types, they are only the name of its class."""
    try:
        return value._shown()
    except Exception as error:
        # A representation is part of tracebacks and logs, where a new error would hide another one.
        return Shown(f"{_words(type(value).__name__)} ({type(error).__name__} while its fields were read)")


def html_of(value: Shown) -> str:
    """Return HTML of bounded length: the line, a table of the facts, and a table of the first rows."""
    facts = list(islice(value.facts.items(), _MOST_FACTS))
    lines = [_row((name.replace("_", " "),), (_value(fact),)) for name, fact in facts]
    parts = [f"<div><strong>{escape(one_line(value.line))}</strong></div>"]
    parts += [_table(lines)] if lines else []
    if value.rows:
        names = list(islice(value.rows[0], _MOST_COLUMNS))
        body = [_row((), [_value(row.get(name)) for name in names]) for row in islice(value.rows, _MOST_ROWS)]
        parts.append(_table([_row([name.replace("_", " ") for name in names], ()), *body]))
        rest = len(value.rows) - _MOST_ROWS
        parts += [f"<div>... and {rest:,} more</div>"] if rest > 0 else []
    return f"<div>{''.join(parts)}</div>"


def _row(heads: Sequence[str], cells: Sequence[str]) -> str:
    columns = [f'<th style="{_CELL}">{escape(one_line(head, _LONGEST_CELL))}</th>' for head in heads]
    longest = LONGEST_LINE if heads else _LONGEST_CELL
    columns += [f'<td style="{_CELL}">{escape(one_line(cell, longest))}</td>' for cell in cells]
    return f"<tr>{''.join(columns)}</tr>"


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(rows)}</table>"


def _fields_of(value: object) -> dict[str, object]:
    """Return the fields of a dataclass without empty strings, empty lists and None."""
    if not is_dataclass(value):
        return {}
    values = {item.name: getattr(value, item.name) for item in fields(value) if item.repr}
    return {name: part for name, part in values.items() if part is not None and part not in ("", (), {}, [])}


def _value(value: object) -> str:
    """Return a value as a string; only the first parts of a collection are read."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value[:_READ]
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, Mapping):
        parts = [f"{_value(key)}={_value(part)}" for key, part in islice(value.items(), 3)]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [_value(part) for part in islice(value, 3)]
    else:
        return str(value)
    rest = len(value) - len(parts)
    return "(" + ", ".join(parts) + (f" and {rest:,} more" if rest else "") + ")"


def _words(name: str) -> str:
    """Return the name of a class as words: `ServiceCost` is `service cost`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
