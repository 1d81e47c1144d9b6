"""Generate one function per table description that splits rows into raw values.

A row is a null bitmap followed by the non-null values. Adjacent fixed-size columns are one slice of bytes, which numpy
splits later for all rows together. The code has no branches: it reads a number only as the length of a variable-size
value. Each combination of nulls gets a separate function, which fills null values with zeros.

The functions do not check each offset: a slice beyond the end is too short, and then the last offset is behind the end
of the event. `split` compares both, so truncated rows are an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import CorruptLogError
from lakehouse.platform.sources.binlog.table_map import WireColumn

#: Maximum number of null combinations with a separate function; the others share a slower one.
_MOST_FUNCTIONS = 256
_READ = {1: "data[{0}]", 2: "u16(data, {0})[0]", 3: "u16(data, {0})[0] | data[{0} + 2] << 16", 4: "u32(data, {0})[0]"}
_UNPACK = {"u16": struct.Struct("<H").unpack_from, "u32": struct.Struct("<I").unpack_from}


@dataclass(slots=True)
class RawColumns:
    """Raw values of one row image.

    Attributes:
        columns: The columns in the image, in order, as indexes in the table.
        wires: Their descriptions.
        wanted: Indexes in `columns` whose values are kept.
        nulls: The null bitmap per row.
        slices: For each group of fixed-size columns, the bytes per row.
        values: For each variable-size column, its value per row, None for null.
    """

    columns: tuple[int, ...]
    wires: tuple[WireColumn, ...]
    wanted: frozenset[int]
    nulls: list[bytes] = field(default_factory=list)
    slices: list[list[bytes]] = field(default_factory=list)
    values: dict[int, list[bytes | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slices = [[] for _ in self.groups]
        self.values = {n: [] for n in sorted(self.wanted) if not self.wires[n].width}

    @property
    def null_bytes(self) -> int:
        """The size of the null bitmap in bytes."""
        return (len(self.columns) + 7) // 8

    @property
    def groups(self) -> list[list[int]]:
        """Adjacent wanted columns of fixed size, as indexes in `columns`."""
        groups: list[list[int]] = []
        for n in sorted(self.wanted):
            if not self.wires[n].width:
                continue
            if groups and groups[-1][-1] == n - 1:
                groups[-1].append(n)
            else:
                groups.append([n])
        return groups


class RowSplitter:
    """Splits row events into raw values.

    `before` and `after` are the row images: inserts have only the image after, deletes only the image before, updates
    both. A missing image is `None`.
    """

    def __init__(self, images: Sequence[RawColumns]) -> None:
        self._images = tuple(images)
        self._split = self._generated()

    def split(self, data: bytes, place: int, end: int) -> int:
        """Append the rows between two offsets in `data` to the raw values; return their number.

        Raises CorruptLogError if the last row does not end at `end`.
        """
        nulls = self._images[0].nulls
        before = len(nulls)
        try:
            reached = self._split(data, place, end)
        except (IndexError, struct.error) as error:
            raise CorruptLogError(f"a row ends behind the {end:,} bytes of its event: {error}") from error
        if reached != end:
            raise CorruptLogError(f"the last row of an event ends at byte {reached:,}, but the event at {end:,}")
        if len(nulls) == before:
            raise CorruptLogError("an event of rows has no rows")
        return len(nulls) - before

    def _generated(self) -> Callable[[bytes, int, int], int]:
        names: dict[str, Any] = dict(_UNPACK)
        lines = ["def split(data, place, end):", "    while place < end:"]
        for number, image in enumerate(self._images):
            _bind(names, image, number)
            size = image.null_bytes
            lines += [
                f"        mask = data[place:place + {size}]",
                f"        if mask == zero_{number}:",
                *(f"            {line}" for line in _row_code(image, number, size, None)),
                "        else:",
                f"            place = functions_{number}[mask](data, place + {size}, mask)",
                f"        nulls_{number}(mask)",
            ]
            names[f"zero_{number}"] = bytes(size)
            names[f"functions_{number}"] = _Functions(image, number, names)
        lines.append("    return place")
        return _compiled(lines, names, "split")


class _Functions(dict[bytes, Callable[..., int]]):
    """The function per null bitmap; generated when the bitmap first occurs."""

    def __init__(self, image: RawColumns, number: int, names: dict[str, Any]) -> None:
        self._image, self._number, self._names = image, number, names
        self._general: Callable[..., int] | None = None

    def __missing__(self, mask: bytes) -> Callable[..., int]:
        if len(mask) < self._image.null_bytes:
            raise IndexError("the bitmap of nulls is cut off")
        if len(self) >= _MOST_FUNCTIONS:
            if self._general is None:
                self._general = self._made(None)
            return self._general
        function = self[mask] = self._made(int.from_bytes(mask, "little"))
        return function

    def _made(self, nulls: int | None) -> Callable[..., int]:
        if nulls is None:
            body = ["nulls = from_bytes(mask, 'little')", *_general_code(self._image, self._number)]
            self._names["from_bytes"] = int.from_bytes
        else:
            body = _row_code(self._image, self._number, 0, nulls)
        lines = ["def row(data, place, mask):", *(f"    {line}" for line in body), "    return place"]
        return _compiled(lines, self._names, "row")


def _compiled(lines: Sequence[str], names: dict[str, Any], name: str) -> Callable[..., int]:
    functions: dict[str, Callable[..., int]] = {}
    exec(compile("\n".join(lines), "<rows of a table>", "exec"), names, functions)
    return functions[name]


def _bind(names: dict[str, Any], image: RawColumns, number: int) -> None:
    names[f"nulls_{number}"] = image.nulls.append
    for group, rows in enumerate(image.slices):
        names[f"slice_{number}_{group}"] = rows.append
    for column, values in image.values.items():
        names[f"value_{number}_{column}"] = values.append


def _row_code(image: RawColumns, number: int, ahead: int, nulls: int | None) -> list[str]:
    """Return the code for one row that begins `ahead` bytes behind `place`; `nulls` are its null columns."""
    lines: list[str] = []
    null = nulls or 0
    group_of = {n: g for g, group in enumerate(image.groups) for n in group}
    parts: list[str] = []

    def finish(group: int) -> None:
        lines.append(f"slice_{number}_{group}({' + '.join(parts) or repr(b'')})")
        parts.clear()

    start = ahead  # where the next slice of the open group begins
    for n, wire in enumerate(image.wires):
        is_null = bool(null >> n & 1)
        if wire.width:
            if n in group_of:
                if is_null:
                    if ahead > start:
                        parts.append(f"data[place + {start}:place + {ahead}]")
                    parts.append(repr(bytes(wire.width)))
                    start = ahead
                else:
                    ahead += wire.width
                last = image.groups[group_of[n]][-1] == n
                if last:
                    if ahead > start:
                        parts.append(f"data[place + {start}:place + {ahead}]")
                    finish(group_of[n])
                    start = ahead
            else:
                ahead += 0 if is_null else wire.width
                start = ahead
            continue
        if is_null:
            if n in image.values:
                lines.append(f"value_{number}_{n}(None)")
            continue
        lines.append(f"size = {_READ[wire.prefix].format(f'place + {ahead}')}")
        first = f"place + {ahead + wire.prefix}"
        if n in image.values:
            lines += [f"stop = {first} + size", f"value_{number}_{n}(data[{first}:stop])", "place = stop"]
        else:
            lines.append(f"place = {first} + size")
        ahead = start = 0
    if ahead:
        lines.append(f"place += {ahead}")
    return lines or ["pass"]


def _general_code(image: RawColumns, number: int) -> list[str]:
    """Return the code for a row that tests per column whether it is null."""
    lines: list[str] = []
    group_of = {n: g for g, group in enumerate(image.groups) for n in group}
    for n, wire in enumerate(image.wires):
        group = group_of.get(n)
        if group is not None and image.groups[group][0] == n:
            lines.append("part = b''")
        lines.append(f"if nulls & {1 << n}:")
        if wire.width:
            lines.append(f"    part += {bytes(wire.width)!r}" if group is not None else "    pass")
            lines.append("else:")
            if group is not None:
                lines.append(f"    part += data[place:place + {wire.width}]")
            lines.append(f"    place += {wire.width}")
            if group is not None and image.groups[group][-1] == n:
                lines.append(f"slice_{number}_{group}(part)")
            continue
        is_kept = n in image.values
        lines += [f"    value_{number}_{n}(None)" if is_kept else "    pass", "else:"]
        lines.append(f"    size = {_READ[wire.prefix].format('place')}")
        lines.append(f"    stop = place + {wire.prefix} + size")
        if is_kept:
            lines.append(f"    value_{number}_{n}(data[place + {wire.prefix}:stop])")
        lines.append("    place = stop")
    return lines
