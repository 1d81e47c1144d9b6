"""The parts of pgoutput messages, protocol version 1.

A tuple is the number of its columns, and a tag per column: `t` with a length and a string, `n` for null, `u` for a
value that was not sent. The tuples of many messages are split together, column by column.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehouse.errors import CorruptLogError
from lakehouse.platform.sources.pgoutput.columns import PgColumn

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = ord("B"), ord("C"), ord("O"), ord("R"), ord("Y")
INSERT, UPDATE, DELETE, TRUNCATE = ord("I"), ord("U"), ord("D"), ord("T")
OLD_KEY, OLD_ROW, NEW_ROW = ord("K"), ord("O"), ord("N")
TEXT, NULL, UNCHANGED = ord("t"), ord("n"), ord("u")
#: Microseconds from 1970 to 2000, from which the server counts.
_EPOCH_US = 946_684_800_000_000
#: The offset of the first tuple's tag in a row message.
ROW_TAG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table description.

    Attributes:
        oid: The OID of the table.
        name: The name as `schema.table`.
        columns: The columns in order; the decoder resolves domains.
        key: The indexes of the replica identity columns.
        identity: `d`, `n`, `f` or `i`, as `pg_class.relreplident`.
    """

    oid: int
    name: str
    columns: tuple[PgColumn, ...]
    key: tuple[int, ...]
    identity: str


def begin(data: bytes) -> tuple[int, int]:
    """Return the log position of the commit and the commit time in microseconds."""
    place, time_us = struct.unpack_from(">qq", data, 1)
    return place, time_us + _EPOCH_US


def transaction(data: bytes) -> int:
    """Return the lower 32 bits of the transaction id in a BEGIN message."""
    (number,) = struct.unpack_from(">I", data, 17)
    return int(number)


def commit(data: bytes) -> tuple[int, int]:
    """Return the log position of the commit, and the position behind it."""
    place, end = struct.unpack_from(">qq", data, 2)
    return place, end


def relation(data: bytes) -> Relation:
    """Return the description of a table."""
    (oid,) = struct.unpack_from(">I", data, 1)
    schema, place = _text(data, 5)
    table, place = _text(data, place)
    identity, count = struct.unpack_from(">cH", data, place)
    place += 3
    columns, key = [], []
    for number in range(count):
        is_key = data[place]
        name, place = _text(data, place + 1)
        kind, modifier = struct.unpack_from(">Ii", data, place)
        place += 8
        columns.append(PgColumn(name=name, oid=kind, modifier=modifier))
        if is_key & 1:
            key.append(number)
    if place != len(data):
        raise CorruptLogError(f"the description of {schema}.{table} has {len(data) - place} bytes too many")
    return Relation(
        oid=oid, name=f"{schema}.{table}", columns=tuple(columns), key=tuple(key), identity=identity.decode()
    )


def truncated(data: bytes) -> tuple[int, ...]:
    """Return the OIDs of the tables that were emptied."""
    (count,) = struct.unpack_from(">I", data, 1)
    return struct.unpack_from(f">{count}I", data, 6)


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(0, place)
    return data[place:end].decode(), end + 1


class Tuples:
    """The values of one tuple per message, split column by column.

    Args:
        data: The concatenated messages.
        places: The offset of each tuple's column count, ascending.
        columns: The number of columns that each tuple must have.
    """

    def __init__(self, data: bytes, places: np.ndarray, columns: int) -> None:
        self._data = np.frombuffer(data, np.uint8)
        # The four bytes at each offset as a number, and the two bytes.
        self._lengths = np.ndarray((max(len(data) - 3, 0),), ">u4", data, strides=(1,))
        self._counts = np.ndarray((max(len(data) - 1, 0),), ">u2", data, strides=(1,))
        self._buffer = pa.py_buffer(data)
        self.tags: list[np.ndarray] = []
        self._starts: list[np.ndarray] = []
        self._ends: list[np.ndarray] = []
        counts = self._numbers(self._counts, places)
        if (counts != columns).any():
            raise CorruptLogError(f"a row has {int(counts[counts != columns][0])} values for {columns} columns")
        at = places + 2
        for _ in range(columns):
            at = self._split(at)
        #: The offset behind each tuple.
        self.ends = at

    def texts(self, column: int) -> pa.Array:
        """Return a column's values as bytes; null and values that were not sent are null."""
        starts, ends = self._starts[column], self._ends[column]
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        # Every second value is the gap between two strings.
        values = pa.Array.from_buffers(
            pa.binary(), max(len(offsets) - 1, 0), [None, pa.py_buffer(offsets), self._buffer]
        )
        wanted = pa.array(np.arange(0, len(offsets), 2), mask=self.tags[column] != TEXT)
        return values.take(wanted)

    def unsent(self, column: int) -> np.ndarray:
        """Return a mask of a column's values that were not sent."""
        mask: np.ndarray = self.tags[column] == UNCHANGED
        return mask

    def _split(self, at: np.ndarray) -> np.ndarray:
        ends: np.ndarray
        if len(at) and int(at.max()) >= len(self._data):
            raise CorruptLogError("a row ends before its last value")
        tags = self._data[at]
        is_text = tags == TEXT
        if is_text.all():
            starts = at + 5
            ends = starts + self._numbers(self._lengths, at + 1)
        else:
            if not (is_text | (tags == NULL) | (tags == UNCHANGED)).all():
                wrong = tags[~(is_text | (tags == NULL) | (tags == UNCHANGED))][0]
                raise CorruptLogError(f"a value has the unknown tag {chr(wrong)!r}; expected 't', 'n' or 'u'")
            starts = at + np.where(is_text, 5, 1)
            ends = np.array(starts, np.int64)
            ends[is_text] += self._numbers(self._lengths, at[is_text] + 1)
        if len(ends) and int(ends.max()) > len(self._data):
            raise CorruptLogError("a value is longer than its message")
        self.tags.append(tags)
        self._starts.append(starts)
        self._ends.append(ends)
        return ends

    def _numbers(self, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the numbers at offsets."""
        if len(places) and int(places.max()) >= len(numbers):
            raise CorruptLogError("a row ends before its last value")
        result: np.ndarray = numbers[places].astype(np.int64)
        return result
