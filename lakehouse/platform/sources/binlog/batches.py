"""Rows of one table version: raw values per event kind, converted to Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UnsupportedError, UserError
from lakehouse.platform.sources.binlog.changes import (
    CHANGE,
    COMMITTED,
    CONTROL,
    DELETE,
    INSERT,
    POSITION,
    UNAVAILABLE,
    UPDATE,
    ChangeBatch,
)
from lakehouse.platform.sources.binlog.columns import arrow_schema
from lakehouse.platform.sources.binlog.row_code import RawColumns, RowSplitter
from lakehouse.platform.sources.binlog.table_map import TableMap
from lakehouse.platform.sources.binlog.values import Converter

_KINDS = (INSERT, UPDATE, DELETE)
_CODES = pa.array(_KINDS, pa.string())
#: Number of rows after which raw values are converted to Arrow arrays, even within a transaction.
_MOST_ROWS = 65_536
_MOST_BYTES = 64 << 20
#: Each row has two ordering values: one for the delete of its old key, and its own.
STEP = 2


class RowSink:
    """The rows of one event kind whose images contain the same columns.

    Args:
        version: The version of the table.
        kind: `insert`, `update` or `delete`.
        images: Column indexes in each image: two images (before, after) for an update, else one.
    """

    def __init__(self, version: TableVersion, kind: str, images: Sequence[tuple[int, ...]]) -> None:
        self.version, self.kind = version, kind
        key = frozenset(version.key)
        last = len(images) - 1
        self.images = [
            RawColumns(
                columns=columns,
                wires=tuple(version.map.columns[place] for place in columns),
                wanted=frozenset(n for n, place in enumerate(columns) if number == last or place in key),
            )
            for number, columns in enumerate(images)
        ]
        if not any(images):
            raise UnsupportedError(
                f"the log has rows of {version.map.name} without any column. Set binlog_row_image=FULL on the server"
            )
        self.has_keys = key <= set(images[0]) or kind == INSERT
        self._splitter = RowSplitter(self.images)
        self._runs: list[tuple[int, int, int]] = []
        self._bytes = 0
        self.parts: list[pa.Table] = []

    def add(self, data: bytes, place: int, end: int, first: int, committed_us: int) -> int:
        """Append an event's rows between two offsets; return their number.

        Args:
            data: The event, or its decompressed data.
            place: The offset of the first row.
            end: The offset behind the last row.
            first: The ordering value before the first row.
            committed_us: The commit time.
        """
        rows = self._splitter.split(data, place, end)
        self._runs.append((first, rows, committed_us))
        self._bytes += end - place
        if len(self.images[0].nulls) >= _MOST_ROWS or self._bytes >= _MOST_BYTES:
            self.finish()
        return rows

    def finish(self) -> None:
        """Convert the raw values to a part."""
        if not self._runs:
            return
        runs = np.array(self._runs, np.int64)
        counts = runs[:, 1]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        positions = np.repeat(runs[:, 0], counts) + (within + 1) * STEP
        times = np.repeat(runs[:, 2], counts)
        self.parts += self.version.converted(self, positions, times)
        self._runs.clear()
        self._bytes = 0
        for image in self.images:
            image.nulls.clear()
            for slices in image.slices:
                slices.clear()
            for values in image.values.values():
                values.clear()


@dataclass(slots=True)
class TableVersion:
    """A table description, and the rows with this description.

    Attributes:
        map: The description.
        key: The indexes of the key columns; empty if the table has no key.
        zero_dates: `null` or `text`.
        sinks: The rows per kind of event and images.
    """

    map: TableMap
    key: tuple[int, ...]
    zero_dates: str = "null"
    sinks: dict[tuple[str, bytes], RowSink] = field(default_factory=dict)
    _converter: Converter = field(default_factory=Converter)
    _schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def __post_init__(self) -> None:
        self._converter = Converter(zero_dates=self.zero_dates)
        self._schema = arrow_schema(tuple(one.column for one in self.map.columns), zero_dates=self.zero_dates)

    @classmethod
    def of(cls, table_map: TableMap, key: Sequence[str] | None, zero_dates: str) -> TableVersion:
        """Return a version with these key columns; None for the primary key."""
        if key is None:
            return cls(table_map, table_map.key, zero_dates)
        names = [one.column.name for one in table_map.columns]
        missing = next((name for name in key if name not in names), None)
        if missing is not None:
            raise UserError(f"the key column {missing!r} is not a column of {table_map.name} any more", column=missing)
        return cls(table_map, tuple(names.index(name) for name in key), zero_dates)

    def sink(self, kind: str, bitmaps: bytes) -> RowSink:
        """Return the rows of an event kind whose bitmaps of present columns match."""
        sink = self.sinks.get((kind, bitmaps))
        if sink is None:
            size = (len(self.map.columns) + 7) // 8
            parts = [int.from_bytes(bitmaps[at : at + size], "little") for at in range(0, len(bitmaps), size)]
            images = [tuple(n for n in range(len(self.map.columns)) if part >> n & 1) for part in parts]
            sink = self.sinks[kind, bitmaps] = RowSink(self, kind, images)
        return sink

    def converted(self, sink: RowSink, positions: np.ndarray, times: np.ndarray) -> list[pa.Table]:
        """Return a sink's raw values as tables."""
        arrays = self._converter.arrays(sink.images[-1])
        absent = [n for n in range(len(self.map.columns)) if n not in arrays]
        if sink.kind != UPDATE:
            return [self._table(sink.kind, arrays, positions, times, absent if sink.kind == INSERT else [])]
        if not self.key:
            return [self._table(UPDATE, arrays, positions, times, absent)]
        if not sink.has_keys:
            raise UserError(
                f"updates of {self.map.name} lack columns of the key before the change. Set binlog_row_image=FULL on "
                "the server"
            )
        before = Converter(zero_dates=self.zero_dates).arrays(sink.images[0])
        changed = np.zeros(len(positions), bool)
        for place in self.key:
            old = before[place]
            if place not in arrays:
                arrays[place] = old
                absent.remove(place)
                continue
            new = arrays[place]
            same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(pc.is_null(old), pc.is_null(new)))
            changed |= ~np.asarray(same)
        if not changed.any():
            return [self._table(UPDATE, arrays, positions, times, absent)]
        in_place, moved = pa.array(~changed), pa.array(changed)
        return [
            self._table(
                UPDATE,
                {n: a.filter(in_place) for n, a in arrays.items()},
                positions[~changed],
                times[~changed],
                absent,
            ),
            self._table(
                DELETE,
                {n: before[n].filter(moved) for n in self.key},
                positions[changed] - 1,
                times[changed],
                [],
            ),
            self._table(
                INSERT,
                {n: a.filter(moved) for n, a in arrays.items()},
                positions[changed],
                times[changed],
                absent,
            ),
        ]

    # parameters: one per column of a change table
    def _table(
        self, kind: str, arrays: dict[int, pa.Array], positions: np.ndarray, times: np.ndarray, absent: list[int]
    ) -> pa.Table:
        rows = len(positions)
        columns = [arrays.get(n) for n in range(len(self._schema))]
        filled = [
            pa.nulls(rows, field.type) if one is None else one for one, field in zip(columns, self._schema, strict=True)
        ]
        codes = pa.array(np.full(rows, _KINDS.index(kind), np.int8))
        control = [
            pa.DictionaryArray.from_arrays(codes, _CODES),
            pa.array(positions, pa.int64()),
            pa.array(times, pa.int64()).view(pa.timestamp("us", "UTC")),
        ]
        names = [*self._schema.names, *CONTROL.names]
        table = pa.table([*filled, *control], names=names)
        if absent:
            missing = pa.array([self._schema.names[n] for n in absent] * rows, pa.string())
            ends = pa.array(np.arange(rows + 1, dtype=np.int32) * len(absent))
            table = table.append_column(UNAVAILABLE, pa.ListArray.from_arrays(ends, missing))
        return table

    def take(self, upto: int | None) -> ChangeBatch | None:
        """Return the changes since the last call, up to an ordering value; None if there are none."""
        parts: list[pa.Table] = []
        for sink in self.sinks.values():
            sink.finish()
            parts += sink.parts
            sink.parts = []
        zeros, self._converter.zeros = self._converter.zeros, {}
        parts = [part for part in parts if part.num_rows]
        if not parts:
            return None
        if any(UNAVAILABLE in part.column_names for part in parts):
            kind = pa.list_(pa.string())
            parts = [
                part
                if UNAVAILABLE in part.column_names
                else part.append_column(UNAVAILABLE, pa.nulls(part.num_rows, kind))
                for part in parts
            ]
        rows = pa.concat_tables(parts)
        if len(parts) > 1:
            rows = rows.take(pc.sort_indices(rows.column(POSITION)))
        if upto is not None:
            rows = rows.filter(pc.less_equal(rows.column(POSITION), upto))
        return ChangeBatch(
            table=self.map.name,
            columns=tuple(one.column for one in self.map.columns),
            key=tuple(self._schema.names[n] for n in self.key),
            rows=rows,
            zero_dates=zeros,
        )


assert CONTROL.names == [CHANGE, POSITION, COMMITTED]
