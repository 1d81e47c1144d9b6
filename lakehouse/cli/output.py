"""Prints the results of commands: text for people, JSON for programs.

Output for people has rounded sizes, local times and durations (`lakehouse.cli.values`). On a terminal, tables fit its
width, and column names are bold unless NO_COLOR is set. A note lists the shortened columns. Rows that are read from a
table are printed in full.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from lakehouse.cli.layout import Layout, lay_out
from lakehouse.cli.values import Texts, header_of, verbatim
from lakehouse.spec.contracts.document import Document, encode

#: Maximum number of rows to print of a table inside a document.
_MOST_ROWS = 20
#: Columns that contain a sentence, which several rows often share, and columns that identify a row.
_REASONS = ("reason", "why")
_LABELS = ("table", "service", "partition")


def show(value: Any, output: str) -> None:
    """Print a mapping or table rows as JSON or as text: `name value` lines for a mapping, a text table for rows.

    The values of rows are printed as they are stored, neither rounded nor shortened.
    """
    if output == "json":
        print(json.dumps(value, indent=2, default=str))
    elif isinstance(value, Mapping):
        _Page().mapping(value)
    elif not value:
        print("(none)")
    else:
        names = list(value[0])
        cells = [[verbatim(row.get(name)) for name in names] for row in value]
        _print(lay_out(names, cells, _width(), may_cut=False))


def show_document(
    document: Document, output: str, rows: Sequence[Mapping[str, Any]] | None = None, *, omitted: Sequence[str] = ()
) -> None:
    """Print a contract as JSON, or for people: a text table of its `rows`, or its fields if it has no rows.

    Field names are printed with spaces instead of underscores. Output for people omits the fields `omitted`.
    """
    if output == "json":
        print(json.dumps(document.to_mapping(), indent=2, ensure_ascii=False))
    elif rows is not None:
        show_rows(rows)
    else:
        fields = {name: value for name, value in encode(document).items() if name not in omitted}
        _Page().mapping(_with_spaces(fields))


def show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of a contract as a text table.

    A reason that several rows share is printed once below the table.
    """
    page = _Page()
    page.table(rows)
    page.end()


def rows_of(values: Sequence[object]) -> list[dict[str, Any]]:
    """Convert dataclasses to rows of a text table; column names have spaces instead of underscores."""
    return [_with_spaces(encode(value)) for value in values]


def grid(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format contract rows as a table of unlimited width. The keys of the first row are the column names."""
    return "\n".join(_laid_out(rows, Texts(), None).lines)


class _Page:
    """Output of one command: its tables, then notes about time zones and shortened columns."""

    def __init__(self) -> None:
        self._texts, self._shortened = Texts(), dict[str, None]()

    def mapping(self, mapping: Mapping[str, Any]) -> None:
        """Print `name  value` lines, and nested rows as tables."""
        wide = max((len(header_of(name)) for name in mapping), default=0)
        for name, value in mapping.items():
            if _is_rows(value):
                print(f"{header_of(name)}:")
                self.table([_with_spaces(row) for row in value], most=_MOST_ROWS, indent="  ")
            else:
                print(f"{header_of(name).ljust(wide)}  {self._texts.of(name, value)}")
        self.end()

    def table(self, rows: Sequence[Mapping[str, Any]], *, most: int | None = None, indent: str = "") -> None:
        """Print at most `most` rows as a table, followed by the number of omitted rows."""
        shown, reasons = _without_repeated_reasons(rows[:most])
        width = _width()
        layout = _laid_out(shown, self._texts, None if width is None else width - len(indent))
        _print(layout, indent)
        self._shortened.update(dict.fromkeys(layout.shortened))
        for reason, labels in reasons.items():
            print(f"{indent}{self._texts.of('reason', reason)}")
            print(f"{indent}  {self._texts.of('', labels)}")
        if most is not None and len(rows) > most:
            print(f"{indent}... and {len(rows) - most:,} more (--output json prints all)")

    def end(self) -> None:
        """Print the notes: the time zone, and the names of shortened columns."""
        notes = [self._texts.footnote()]
        if self._shortened:
            notes.append(f"shortened to the terminal: {', '.join(self._shortened)} (--output json prints all)")
        for note in filter(None, notes):
            print(f"({note})")


def _laid_out(rows: Sequence[Mapping[str, Any]], texts: Texts, width: int | None) -> Layout:
    if not rows:
        return Layout(("(none)",))
    names = list(rows[0])
    cells = [[texts.of(name, row.get(name)) for name in names] for row in rows]
    return lay_out([header_of(name) for name in names], cells, width, may_cut=True)


def _without_repeated_reasons(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], dict[str, list[str]]]:
    """If a reason is repeated, remove the column of reasons. Return the rows, and the row names by reason."""
    column = next((name for name in _REASONS if rows and name in rows[0]), None)
    labels = [name for name in _LABELS if rows and name in rows[0]]
    if column is None or not labels:
        return rows, {}
    columns: dict[str, list[str]] = {}
    for row in rows:
        if row[column]:
            columns.setdefault(str(row[column]), []).append(" ".join(str(row[name]) for name in labels))
    if len(columns) == sum(map(len, columns.values())):
        return rows, {}
    return [{name: value for name, value in row.items() if name != column} for row in rows], columns


def _with_spaces(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", " "): value for name, value in mapping.items()}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _width() -> int | None:
    """Return the width of the terminal in characters, or None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print(layout: Layout, indent: str = "") -> None:
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    console: Any = import_module("rich.console").Console(file=sys.stdout) if styled else None
    for number, line in enumerate(layout.lines):
        if console is not None and number in layout.heads:
            console.print(f"{indent}{line}", style="bold", markup=False, highlight=False, soft_wrap=True)
        else:
            print(f"{indent}{line}".rstrip())
