"""JSON rows as sample columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lakehouse.platform.suggest.json_types import JsonType, NotJsonError, first_records, json_records
from lakehouse.platform.suggest.sample import SampledColumn, shown
from lakehouse.platform.suggest.text_columns import epoch_notes
from lakehouse.platform.suggest.text_types import TextRules, text_type
from lakehouse.platform.suggest.time_patterns import DATE_PATTERNS, TIMESTAMP_PATTERNS, patterns_of


@dataclass(slots=True)
class JsonRows:
    """The rows in JSON files.

    Attributes:
        rows: The records.
        spans_lines: Whether records, or the array that contains them, span lines.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    spans_lines: bool = False

    def add_file(self, lines: Iterator[str], most: int, bad: Callable[[int, str, str], None]) -> int:
        """Add a file's records; return the number of characters that were read.

        Args:
            lines: The non-blank lines.
            most: The maximum number of records.
            bad: Receives the number, the reason and the content of each invalid line.
        """
        first = next(lines, "")
        if _spans_lines(first):
            self.spans_lines = True
            text = "\n".join((first, *lines))
            added = 0
            for record in first_records(text):
                self.rows.append(record)
                added += 1
                if added >= most:
                    break
            if not added:
                bad(1, "not JSON", text)
            return len(text)
        size, added, number = 0, 0, 1
        line: str | None = first
        while line is not None and added < most:
            size += len(line)
            try:
                records = json_records(line)
                self.rows += records
                added += len(records)
            except NotJsonError as error:
                bad(number, f"not JSON ({error})", line)
            line, number = next(lines, None), number + 1
        return size


def json_columns(rows: JsonRows) -> tuple[tuple[SampledColumn, ...], tuple[str, ...]]:
    """Return the columns of the records, and notes about columns that the spec cannot declare."""
    types: dict[str, JsonType] = {}
    for row in rows.rows:
        for name, value in row.items():
            types.setdefault(name, JsonType()).add(value)
    empty = [name for name, kind in types.items() if not kind.kinds]
    notes = []
    unnamed = types.pop("", None)
    if unnamed is not None:
        notes.append("left out: a key without characters is no name of a column; its values are not read")
    for names in _same_names(types):
        first, *others = names
        notes.append(
            f"not sure: keys differ in upper and lower case only: {', '.join(map(repr, names))}. A table has one "
            f"column for them, so the spec declares {first!r} alone; see whether rows with {others[0]!r} keep it"
        )
        for name in others:
            del types[name]
    if empty:
        notes.append(
            f"without a value in the sample, so of unknown type: {', '.join(empty)}; the first value of such a column "
            "adds it (new_column)"
        )
    return tuple(_column(name, kind, rows) for name, kind in types.items() if kind.kinds), tuple(notes)


def _same_names(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that differ only in case."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.lower(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _column(name: str, kind: JsonType, rows: JsonRows) -> SampledColumn:
    values = [_hashable(row.get(name)) for row in rows.rows]
    sql, notes, pattern = kind.sql, tuple[str, ...](), ""
    present = {value for value in values if value is not None}
    if kind.kinds == {"string"}:
        texts = {str(value) for value in present}
        as_text = text_type(texts, TextRules())
        patterns = patterns_of(texts, (*DATE_PATTERNS, *TIMESTAMP_PATTERNS))
        if as_text in ("date", "timestamp"):
            sql, notes = as_text, ("strings in the files; write string to keep their texts",)
        elif len(patterns) == 1:
            pattern, notes = patterns[0], (f"times as {patterns[0]}",)
        elif patterns:
            notes = (f"times as {' or '.join(patterns)}: the sample does not decide which",)
    elif sql == "bigint":
        notes = epoch_notes(name, [value for value in present if isinstance(value, int)])
    elif kind.kinds == {"object"}:
        notes = () if sql != "string" else (kind.reason,)
    elif sql == "string":
        kinds = ", ".join(sorted(kind.kinds))
        example = next(iter(present))
        notes = (f"values of several kinds, or too large for a number ({kinds}), such as {shown(example)}",)
    is_integer = sql == "bigint" or (sql.startswith("decimal(") and sql.endswith(",0)"))
    return SampledColumn(
        name=name,
        type=sql,
        values=values,
        notes=notes,
        key_type=sql if is_integer else "string",
        time_format=pattern,
    )


def _hashable(value: Any) -> Hashable:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _spans_lines(first: str) -> bool:
    """Return whether the first line is an incomplete record or array."""
    if not first.lstrip().startswith(("{", "[")):
        return False
    try:
        json_records(first)
    except NotJsonError:
        # A truncated line and a damaged line look the same, so the rest of the line decides.
        return first.strip() in ("{", "[", "[{") or first.rstrip().endswith((",", "{", "["))
    return False
