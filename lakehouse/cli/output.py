"""Output of commands: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse.model.texts import printable
from lakehouse.spec.contracts.document import Document, encode


def show(value: Any, output: str) -> None:
    """Print a mapping or a list of mappings as JSON, or as text: `name  value` lines, tables for lists."""
    if output == "json":
        print(json.dumps(value, indent=2, default=str))
    elif isinstance(value, Mapping):
        _show_mapping(value)
    else:
        print(grid(value))


def show_document(
    document: Document, output: str, rows: Sequence[Mapping[str, Any]] | None = None, *, omitted: Sequence[str] = ()
) -> None:
    """Print a contract as JSON, or as text for people: the `rows` as a table, or else the fields.

    Field names are printed with spaces instead of underscores. The text lacks the fields `omitted`.
    """
    if output == "json":
        print(json.dumps(document.to_mapping(), indent=2, ensure_ascii=False))
    elif rows is not None:
        print(grid(rows))
    else:
        fields = {name: value for name, value in encode(document).items() if name not in omitted}
        _show_mapping(_with_spaces(fields))


def rows_of(values: Sequence[object]) -> list[dict[str, Any]]:
    """Return dataclasses as rows of a text table; column names have spaces instead of underscores."""
    return [_with_spaces(encode(value)) for value in values]


def grid(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a text table; the keys of the first row are the column names."""
    if not rows:
        return "(none)"
    names = list(rows[0])
    cells = [names, *[[_text(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _show_mapping(mapping: Mapping[str, Any]) -> None:
    width = max((len(name) for name in mapping), default=0)
    for name, value in mapping.items():
        if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], Mapping):
            print(f"{name}:")
            print("\n".join(f"  {line}" for line in grid([_with_spaces(row) for row in value]).splitlines()))
        else:
            print(f"{name.ljust(width)}  {_text(value)}")


def _with_spaces(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", " "): value for name, value in mapping.items()}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(name)}={_text(part)}" for name, part in value.items()) or "-"
    return (", ".join(map(_text, value)) or "-") if isinstance(value, list | tuple) else printable(str(value))
