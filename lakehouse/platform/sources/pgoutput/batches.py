"""Rows of one table version: messages per kind, converted to Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CorruptLogError, SnapshotNeededError, UserError
from lakehouse.platform.sources.databases.server import (
    CHANGE,
    COMMITTED,
    DELETE,
    INSERT,
    POSITION,
    UNAVAILABLE,
    UPDATE,
    Changes,
)
from lakehouse.platform.sources.pgoutput import messages
from lakehouse.platform.sources.pgoutput.columns import PgColumn, arrow_schema
from lakehouse.platform.sources.pgoutput.messages import Relation, Tuples
from lakehouse.platform.sources.pgoutput.values import converted

_KINDS = (INSERT, UPDATE, DELETE)
_CODES = pa.array(_KINDS, pa.string())
_LIST = pa.list_(pa.string())
#: Number of messages after which they are converted to Arrow arrays, even within a transaction. They fit into a core's
#: cache.
MOST_ROWS = 8_192
#: Each row has two ordering values: one for the delete of its old key, and its own.
STEP = 2


@dataclass(slots=True)
class Sink:
    """Messages of one kind: bytes, ordering values and commit times."""

    data: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Rows:
    """Values of rows: strings by column, and a flag for values that were not sent."""

    kind: str
    texts: list[pa.Array]
    positions: np.ndarray
    times: np.ndarray
    unsent: list[np.ndarray] = field(default_factory=list)

    def filtered(self, mask: np.ndarray, kind: str) -> _Rows:
        """Return the rows in a mask as another kind of change."""
        wanted = pa.array(mask)
        return _Rows(
            kind=kind,
            texts=[one.filter(wanted) for one in self.texts],
            positions=self.positions[mask],
            times=self.times[mask],
            unsent=[one[mask] for one in self.unsent],
        )


class TableVersion:
    """A table description, and the rows with this description.

    Args:
        relation: The description.
        columns: Its columns, with domains resolved.
        key: The names of the key columns; empty if rows are appended.
    """

    def __init__(self, relation: Relation, columns: tuple[PgColumn, ...], key: Sequence[str]) -> None:
        self.relation, self.columns = relation, columns
        self.schema = arrow_schema(columns)
        names = self.schema.names
        missing = next((name for name in key if name not in names), None)
        if missing is not None:
            raise UserError(
                f"the key column {missing!r} is not a column of {relation.name} any more",
                column=missing,
                tables=(relation.name,),
            )
        self._key = tuple(names.index(name) for name in key)
        #: Whether the log contains a row's key before its change.
        self._has_keys = relation.identity == "f" or set(self._key) <= set(relation.key)
        #: Messages by their kind and the tag of their first tuple.
        self.sinks: dict[int, Sink] = {}
        self._parts: list[pa.Table] = []

    def sink(self, kind: int, tag: int) -> Sink:
        """Return the messages of a kind whose first tuple has a tag; raise UserError if the log lacks their keys."""
        if kind != messages.INSERT and self._key and not self._has_keys:
            raise SnapshotNeededError(
                f"the log does not have the key of changed rows of {self.relation.name}: its replica identity is "
                f"{self.relation.identity!r}. Run ALTER TABLE {self.relation.name} REPLICA IDENTITY FULL, or "
                f"DEFAULT if the key is the primary key",
                tables=(self.relation.name,),
            )
        sink = self.sinks[kind << 8 | tag] = Sink()
        return sink

    def take(self) -> Changes | None:
        """Return the changes since the last call; None if there are none."""
        self.finish()
        parts, self._parts = [part for part in self._parts if part.num_rows], []
        if not parts:
            return None
        if any(UNAVAILABLE in part.column_names for part in parts):
            parts = [
                part if UNAVAILABLE in part.column_names else part.append_column(UNAVAILABLE, _nulls(part.num_rows))
                for part in parts
            ]
        rows = pa.concat_tables(parts)
        if len(parts) > 1:
            rows = rows.take(pc.sort_indices(rows.column(POSITION)))
        return Changes(table=self.relation.name, rows=rows)

    def finish(self) -> None:
        """Make Arrow tables of the messages."""
        for kind, sink in self.sinks.items():
            self._parts += [self._table(rows) for rows in self._split(kind >> 8, kind & 0xFF, sink)]
        self.sinks.clear()

    def _split(self, kind: int, tag: int, sink: Sink) -> list[_Rows]:
        data = b"".join(sink.data)
        lengths = np.fromiter(map(len, sink.data), np.int64, len(sink.data))
        ends = np.cumsum(lengths)
        first = Tuples(data, ends - lengths + messages.ROW_TAG + 1, len(self.columns))
        positions, times = np.array(sink.positions, np.int64), np.array(sink.times, np.int64)
        old: Tuples | None = None
        if kind == messages.UPDATE and tag != messages.NEW_ROW:
            old = first
            if (np.frombuffer(data, np.uint8)[old.ends] != messages.NEW_ROW).any():
                raise CorruptLogError(f"an update of {self.relation.name} has no new row")
            first = Tuples(data, old.ends + 1, len(self.columns))
        if (first.ends != ends).any():
            raise CorruptLogError(f"a row of {self.relation.name} has bytes behind its last value")
        texts = [first.texts(number) for number in range(len(self.columns))]
        if kind != messages.UPDATE:
            return [_Rows(INSERT if kind == messages.INSERT else DELETE, texts, positions, times)]
        unsent = [first.unsent(number) for number in range(len(self.columns))]
        rows = _Rows(UPDATE, texts, positions, times, unsent)
        return [self._checked(rows)] if old is None else self._moved(rows, old)

    def _moved(self, rows: _Rows, old: Tuples) -> list[_Rows]:
        """Return updates with their old row or key; updates that change the key become deletes and inserts."""
        before = [old.texts(number) for number in range(len(self.columns))]
        for number, gone in enumerate(rows.unsent):
            filled = gone & ~np.asarray(before[number].is_null())
            if filled.any():
                rows.texts[number] = pc.if_else(pa.array(filled), before[number], rows.texts[number])
                rows.unsent[number] = gone & ~filled
        self._checked(rows)
        changed = np.zeros(len(rows.positions), bool)
        for place in self._key:
            same = pc.fill_null(pc.equal(before[place], rows.texts[place]), False)
            changed |= ~np.asarray(same)
        if not changed.any():
            return [rows]
        deletes = _Rows(DELETE, before, rows.positions - 1, rows.times).filtered(changed, DELETE)
        return [rows.filtered(~changed, UPDATE), deletes, rows.filtered(changed, INSERT)]

    def _checked(self, rows: _Rows) -> _Rows:
        """Return rows whose keys are all known; raise UserError otherwise."""
        if any(rows.unsent[place].any() for place in self._key):
            raise UserError(
                f"updates of {self.relation.name} lack values of its key, because they are stored out of line and the "
                "server does not log them. Update the server to its newest minor version, or run ALTER TABLE "
                f"{self.relation.name} REPLICA IDENTITY FULL",
                tables=(self.relation.name,),
            )
        return rows

    def _table(self, rows: _Rows) -> pa.Table:
        count = len(rows.positions)
        arrays = [converted(texts, column) for texts, column in zip(rows.texts, self.columns, strict=True)]
        codes = pa.array(np.full(count, _KINDS.index(rows.kind), np.int8))
        control = [
            pa.DictionaryArray.from_arrays(codes, _CODES),
            pa.array(rows.positions, pa.int64()),
            pa.array(rows.times, pa.int64()).view(pa.timestamp("us", "UTC")),
        ]
        table = pa.table([*arrays, *control], names=[*self.schema.names, CHANGE, POSITION, COMMITTED])
        if any(gone.any() for gone in rows.unsent):
            table = table.append_column(UNAVAILABLE, _names(rows.unsent, self.schema.names))
        return table


def _names(unsent: Sequence[np.ndarray], names: Sequence[str]) -> pa.Array:
    """Return, per row, the names of the columns whose values were not sent."""
    which, places = np.nonzero(np.array(unsent).T)
    rows = len(unsent[0])
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(which, minlength=rows), out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(names, pa.string()).take(pa.array(places)))


def _nulls(rows: int) -> pa.Array:
    return pa.nulls(rows, _LIST)
