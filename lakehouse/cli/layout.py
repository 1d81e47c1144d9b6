"""Text tables that fit a terminal: columns are shortened to its width, or each row becomes a block of lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = 2
#: Minimum width of a column. A table whose columns would be narrower is printed as blocks.
_NARROWEST = 12
_CUT = "..."


@dataclass(frozen=True, slots=True)
class Layout:
    """The output lines of a table.

    `heads` are the indices of lines with column names; `shortened` lists the cut columns.
    """

    lines: tuple[str, ...]
    heads: frozenset[int] = frozenset()
    shortened: tuple[str, ...] = ()


def lay_out(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, may_cut: bool) -> Layout:
    """Format a table with a header line and a rule below it.

    Args:
        names: Column names.
        rows: Cells of each row, as strings.
        width: Width of the terminal in characters; None prints cells in full.
        may_cut: Whether cells may be shortened. Otherwise a table that is too wide is printed as blocks of lines.
    """
    widths = [max(map(_length, column)) for column in zip(names, *rows, strict=True)]
    if width is None or _total(widths) <= width:
        return Layout(_lines(names, rows, widths), frozenset({0}))
    narrow = _narrowed(widths, names, width) if may_cut else None
    if narrow is None:
        return _blocks(names, rows)
    cut = tuple(name for name, wide, fits in zip(names, widths, narrow, strict=True) if fits < wide)
    cells = [[_cut(cell, fits) for cell, fits in zip(row, narrow, strict=True)] for row in rows]
    return Layout(_lines(names, cells, narrow), frozenset({0}), cut)


def _lines(names: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> tuple[str, ...]:
    def line(cells: Sequence[str]) -> str:
        padded = (cell + " " * (width - _length(cell)) for cell, width in zip(cells, widths, strict=True))
        return (" " * _GAP).join(padded).rstrip()

    return (line(names), (" " * _GAP).join("-" * width for width in widths), *map(line, rows))


def _narrowed(widths: Sequence[int], names: Sequence[str], width: int) -> list[int] | None:
    """Shorten the widest columns until the table fits. Return None if columns would be too narrow."""
    least = [max(_NARROWEST, _length(name)) for name in names]
    narrow = list(widths)
    while _total(narrow) > width:
        able = [number for number, wide in enumerate(narrow) if wide > least[number]]
        if not able:
            return None
        widest = max(able, key=narrow.__getitem__)
        others = [narrow[number] for number in able if narrow[number] < narrow[widest]]
        # Shorten the widest column as far as needed, but at most to the width of the second widest.
        step = min(_total(narrow) - width, narrow[widest] - max([least[widest], *others]))
        narrow[widest] -= max(step, 1)
    return narrow


def _blocks(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Layout:
    """Format each row as lines `name value`, with an empty line between rows."""
    wide = max(map(_length, names))
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        for name, cell in zip(names, row, strict=True):
            lines.append(f"{name}{' ' * (wide - _length(name))}  {cell}".rstrip())
    return Layout(tuple(lines))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _length(text: str) -> int:
    """Return the display width of a string: wide characters take two columns, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, width: int) -> str:
    if _length(text) <= width:
        return text
    shortened = text
    while _length(shortened) > width - len(_CUT):
        shortened = shortened[:-1]
    return shortened + _CUT
