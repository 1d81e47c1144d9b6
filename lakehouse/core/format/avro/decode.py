"""Decode the Avro records of a log block into Arrow columns, all records of a batch together (DATA-4.4).

    content   int32 version | int32 count | int32 length, datum | int32 length, datum | ...
                                                         ^                     ^
                                                         one cursor per record

All cursors are at the same field of their records. Reading a field is one vectorized load at all cursors. It gives the
values as one array and the cursors of the next field. Rows without a value (nulls, finished lists) are excluded from
the step.

Two things are not vectorized over records: the chain of lengths is followed record by record, and lists and maps take
one step per item. While many lists have items left, a step reads one item from each list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.avro.nodes import MAX_RECORD_BYTES, AvroNode, avro_nodes, with_fields
from lakehouse.core.format.avro.varints import I64, MARGIN, U8, Window
from lakehouse.core.format.avro.walk import item_starts
from lakehouse.core.format.spread import spread
from lakehouse.errors import CorruptTableError, UserError, nearest

#: Log block versions with the layout above. Version 0, from before table version 1, has no count.
VERSIONS = range(1, 4)

_LENGTH = struct.Struct(">I")
#: Maximum number of records per batch, so that the cursors of a few steps fit into the processor's cache.
_BATCH_RECORDS = 16_384
_BATCH_BYTES = 16 << 20
#: Number of lists at which a round costs about as much as one Python step per list.
_FEW_LISTS = 32

Mask: TypeAlias = NDArray[np.bool_]
#: Result of a read: the values (None if they are skipped), and the cursors after them.
Read: TypeAlias = tuple[Any, I64]


def decode_avro_rows(
    content: bytes | memoryview | pa.Buffer,
    schema: str,
    columns: Sequence[str] | None = None,
    fields: Collection[str] | None = None,
) -> pa.Table:
    """Return the records of an AVRO_DATA or CDC_DATA block as a table with the types that `avro_to_arrow` returns.

    Args:
        content: The content of the block.
        schema: Avro JSON, the block's SCHEMA header.
        columns: Names of the columns to return, in the order of the schema; None means all. Other columns are parsed
            but not built.
        fields: Names of the fields to return for columns that are records; None means all. Each has at least one field.

    Raises:
        CorruptTableError: The lengths do not add up, or a record is shorter or longer than its length; the message
            names record and column. Also for the schemas for which `avro_nodes` raises it.
        UserError: `columns` has an unknown name or is empty.
        UnsupportedError: The errors of `avro_nodes`.
    """
    root = avro_nodes(schema) if fields is None else _reduced_nodes(schema, frozenset(fields))
    names = _column_names(root, columns)
    data = np.frombuffer(content, np.uint8)
    starts, ends = _records(data)
    result = pa.schema([field for field in root.arrow if field.name in names])
    batches = []
    for first, last in _batches(starts, ends):
        reader = _Reader(data[starts[first] : ends[last - 1]], starts[first:last], ends[first:last], first)
        batches.append(pa.RecordBatch.from_arrays(reader.columns(root, names), schema=result))
    return pa.Table.from_batches(batches, schema=result)


def decode_avro_values(values: pa.Array, root: AvroNode, columns: Sequence[str]) -> pa.Table:
    """Return the records that a binary array contains, one in each value, as a table.

    Args:
        values: Binary array without nulls.
        root: The node of the records; it may contain unions of several types.
        columns: Names of the columns to return. Other columns are parsed but not built.

    Raises:
        CorruptTableError: A record is shorter or longer than its value, or is malformed.
    """
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    result = pa.schema([field for field in root.arrow if field.name in columns])
    batches = []
    for first, last in _batches(starts, ends):
        reader = _Reader(data[starts[first] : ends[last - 1]], starts[first:last], ends[first:last], first)
        batches.append(pa.RecordBatch.from_arrays(reader.columns(root, frozenset(columns)), schema=result))
    return pa.Table.from_batches(batches, schema=result)


@lru_cache(maxsize=64)
def _reduced_nodes(schema: str, fields: frozenset[str]) -> AvroNode:
    return with_fields(avro_nodes(schema), fields)


def _column_names(root: AvroNode, columns: Sequence[str] | None) -> frozenset[str]:
    names = [field.name for field in root.arrow]
    for name in columns or ():
        if name not in names:
            raise UserError(f"the log block has no column {name!r}.{nearest(name, names)}", column=name)
    if columns is not None and not columns:
        raise UserError("a table without columns has no row count; name at least one column")
    return frozenset(names if columns is None else columns)


def _records(data: U8) -> tuple[I64, I64]:
    """Return the start and the end of each record's datum."""
    if len(data) < 8:
        raise CorruptTableError(f"the Avro block has {len(data)} bytes; version and count take 8")
    version, count = (int(number) for number in data[:8].view(">i4"))
    if version not in VERSIONS:
        raise CorruptTableError(f"the Avro block has the unknown version {version}; expected 1 to 3", version=version)
    if not 0 <= count <= (len(data) - 8) // 4:
        raise CorruptTableError(f"the Avro block declares {count} records in {len(data)} bytes", count=count)
    try:
        chain = np.fromiter(_chain(data.data, count), np.int64, count + 1)
    except struct.error as error:
        raise CorruptTableError(f"the Avro block ends inside its {count} records", count=count) from error
    if chain[-1] != len(data):
        raise CorruptTableError(
            f"the {count} records of the Avro block end at byte {chain[-1]}, but its content ends at {len(data)}",
            count=count,
        )
    starts, ends = chain[:-1] + 4, chain[1:]
    if (longest := int((ends - starts).max(initial=0))) > MAX_RECORD_BYTES:
        raise CorruptTableError(
            f"the Avro block has a record of {longest} bytes; at most {MAX_RECORD_BYTES} are possible"
        )
    return starts, ends


def _chain(data: memoryview, count: int) -> Iterator[int]:
    """Yield the position of each record's length, and then the end of the last record.

    This is a loop over records, 0.09 us each, because only a record's length gives the position of the next one.
    Lengths are read as unsigned, so a negative length points past the content and not backwards.
    """
    length_at = _LENGTH.unpack_from
    position = 8
    for _ in repeat(None, count):
        yield position
        position += length_at(data, position)[0] + 4
    yield position


def _batches(starts: I64, ends: I64) -> Iterator[tuple[int, int]]:
    """Yield ranges of records, each at most _BATCH_RECORDS records and _BATCH_BYTES bytes, but at least one record."""
    first = 0
    while first < len(starts):
        fitting = int(np.searchsorted(ends, starts[first] + _BATCH_BYTES, "right"))
        last = max(first + 1, min(first + _BATCH_RECORDS, fitting))
        yield first, last
        first = last


class _Reader:
    """Reads the fields from a batch of records.

    `at` are cursors and `end` the ends of their records, one item per row. Cursors increase strictly from row to row
    and never pass their `end`; every step checks that before it loads. `build` is false for columns that are skipped.
    """

    def __init__(self, content: U8, starts: I64, ends: I64, first: int) -> None:
        self._window = Window(content)
        self._starts = starts - (starts[0] - MARGIN)
        self._ends = ends - (starts[0] - MARGIN)
        self._first = first

    def columns(self, root: AvroNode, names: frozenset[str]) -> list[Any]:
        """Return the columns with these names, after a check that each record ends at its length."""
        at, built = self._starts, []
        for node in root.children:
            values, at = self._value(node, at, self._ends, node.path in names)
            if values is not None:
                built.append(values)
        if (at != self._ends).any():
            self._fail(root, at != self._ends, self._ends, "is shorter than its length")
        return built

    def _value(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        """Read a value at every cursor, with the branch of its union."""
        if node.value_branch is None:
            return _STEPS[node.kind](self, node, at, end, build)
        behind = self._forward(node, at, 1, end)
        branch = self._window.bytes_at(at)
        has_value = branch == 2 * node.value_branch
        is_valid = has_value if node.null_branch is None else has_value | (branch == 2 * node.null_branch)
        if not is_valid.all():
            self._fail(node, ~is_valid, end, f"has branch byte {branch[~is_valid][0]:#04x}, which its union lacks")
        step = _STEPS[node.kind]
        count = int(np.count_nonzero(has_value))
        if count == len(at):
            return step(self, node, behind, end, build)
        if count == 0:
            return (spread(_nothing(node), has_value, nullable=True) if build else None), behind
        rows = np.flatnonzero(has_value)
        values, behind[rows] = step(self, node, behind[rows], end[rows], build)
        return (spread(values, has_value, nullable=True) if build else None), behind

    def _fixed_width(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        behind = self._forward(node, at, node.size, end)
        if not build:
            return None, behind
        if node.kind == "boolean":
            raw = self._window.bytes_at(at)
            if raw.max(initial=0) > 1:
                self._fail(node, raw > 1, end, "is a boolean other than 0 and 1")
            return _array(node, len(at), np.packbits(raw, bitorder="little")), behind
        if pa.types.is_decimal(node.arrow):
            return self._decimals(node, behind, np.full(len(at), node.size)), behind
        return _array(node, len(at), self._window.at(at, f"V{node.size}")), behind

    def _integer(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        values, behind = self._varint(node, at, end)
        if node.kind == "int":
            wide, values = values, values.astype(np.int32)
            if (wide != values).any():
                self._fail(node, wide != values, end, "is an int of more than 32 bits")
        if not build:
            return None, behind
        array = _array(node, len(at), values)
        return (_checked(node, array) if pa.types.is_time(node.arrow) else array), behind

    def _enum(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        values, behind = self._varint(node, at, end)
        is_wrong = (values < 0) | (values >= len(node.symbols))
        if is_wrong.any():
            self._fail(
                node, is_wrong, end, f"has symbol {values[is_wrong][0]} of an enum of {len(node.symbols)} symbols"
            )
        return (pa.array(node.symbols, pa.string()).take(pa.array(values)) if build else None), behind

    def _text(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        """Read strings, bytes and decimals in bytes: a length, then that many bytes."""
        lengths, begin = self._varint(node, at, end)
        is_wrong = (lengths < 0) | (lengths > end - begin)
        if is_wrong.any():
            self._fail(node, is_wrong, end, f"has a length of {lengths[is_wrong][0]} bytes, past the end of its record")
        behind = begin + lengths
        if not build:
            return None, behind
        if pa.types.is_decimal(node.arrow):
            if ((lengths < 1) | (lengths > 16)).any():
                self._fail(node, (lengths < 1) | (lengths > 16), end, "is a decimal whose size is not 1 to 16 bytes")
            return self._decimals(node, behind, lengths), behind
        values = self._slices(begin, behind)
        if not pa.types.is_string(node.arrow):
            return values, behind
        try:
            return values.cast(pa.string()), behind
        except pa.ArrowInvalid as error:
            raise CorruptTableError(f"column {node.path!r} has text that is not UTF-8", column=node.path) from error

    def _record(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        fields = []
        for child in node.children:
            values, at = self._value(child, at, end, build and not child.is_skipped)
            if not child.is_skipped:
                fields.append(values)
        return (pa.StructArray.from_arrays(fields, fields=list(node.arrow)) if build else None), at

    def _union(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        """Read unions of several types as structs with one field per type; only the field of the branch has a value."""
        behind = self._forward(node, at, 1, end)
        branch = self._window.bytes_at(at)
        is_valid = branch == 2 * node.null_branch if node.null_branch is not None else np.zeros(len(at), np.bool_)
        fields = []
        for number, child in zip(node.branches, node.children, strict=True):
            has_value = branch == 2 * number
            rows = np.flatnonzero(has_value)
            is_valid |= has_value
            if len(rows) == 0:
                fields.append(pa.nulls(len(at), child.arrow) if build else None)
                continue
            values, behind[rows] = _STEPS[child.kind](self, child, behind[rows], end[rows], build)
            fields.append(spread(values, has_value, nullable=True) if build else None)
        if not is_valid.all():
            self._fail(node, ~is_valid, end, f"has branch byte {branch[~is_valid][0]:#04x}, which its union lacks")
        return (pa.StructArray.from_arrays(fields, fields=list(node.arrow)) if build else None), behind

    def _list(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        (item,) = node.children
        offsets, items, behind = self._items(node, (item,), at, end, build)
        if not build:
            return None, behind
        return pa.ListArray.from_arrays(offsets, items[0], type=node.arrow), behind

    def _map(self, node: AvroNode, at: I64, end: I64, build: bool) -> Read:
        offsets, items, behind = self._items(node, node.children, at, end, build)
        if not build:
            return None, behind
        return pa.MapArray.from_arrays(offsets, *items, type=node.arrow), behind

    def _items(
        self, node: AvroNode, parts: Sequence[AvroNode], at: I64, end: I64, build: bool
    ) -> tuple[Any, list[Any], I64]:
        """Read lists: return their offsets, the values for each node in `parts`, and the cursors after the lists.

        An item consists of one value per node in `parts`. First the start of each item is found. Each round skips the
        next item of every list that has items left. If items have a constant width, or if few lists are left, a round
        finds the whole rest of their blocks. Then all items are read together.
        """
        width = parts[0].width if len(parts) == 1 else None
        at = at.copy()
        left = np.zeros(len(at), np.int64)
        rounds = [np.empty((2, 0), np.int64)]
        reading = np.arange(len(at))
        while len(reading := self._next_blocks(node, parts, reading, at, left, end)):
            if width is None and len(reading) > _FEW_LISTS:
                rounds.append(np.stack([at[reading], reading]))
                cursors, limits = at[reading], end[reading]
                for part in parts:
                    cursors = self._value(part, cursors, limits, False)[1]
                at[reading] = cursors
                left[reading] -= 1
                continue
            owners = np.repeat(reading, left[reading])
            if width is None:
                cursors, after = self._walk(node, parts, at[reading], end[reading], left[reading])
            else:
                cursors = at[owners] + width * _ranks(left[reading])
                after = at[reading] + width * left[reading]
                # Reading checks the branch bytes of values in a union with one type, and that no list passes its end.
                self._forward(node, after, 0, end[reading])
            rounds.append(np.stack([cursors, owners]))
            at[reading], left[reading] = after, 0
        if not build:
            return None, [], at
        starts, owners = np.concatenate(rounds, axis=1)
        order = np.argsort(starts, kind="stable")
        cursors, owners = starts[order], owners[order]
        offsets = np.zeros(len(at) + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=len(at)), out=offsets[1:])
        limits, items = end[owners], []
        for part in parts:
            array, cursors = self._value(part, cursors, limits, True)
            items.append(array)
        return pa.array(offsets), items, at

    def _walk(self, node: AvroNode, parts: Sequence[AvroNode], at: I64, end: I64, counts: I64) -> tuple[I64, I64]:
        """Return the start of each item in a few lists, and the end of the last item in each list."""
        starts: list[I64] = []
        for start, limit, count in zip(at.tolist(), end.tolist(), counts.tolist(), strict=True):
            try:
                starts.append(np.array(item_starts(parts, self._window.data.data, start, limit, count), np.int64))
            except ValueError as error:
                self._fail(node, end == limit, end, f"has items that cannot be parsed: {error}")
        return np.concatenate([part[:-1] for part in starts]), np.array([part[-1] for part in starts], np.int64)

    # parameters: the cursors of one decoding step; they are arrays that the caller updates
    def _next_blocks(
        self, node: AvroNode, parts: Sequence[AvroNode], reading: I64, at: I64, left: I64, end: I64
    ) -> I64:
        """Read the next block header of each list whose current block ended. Return the lists that have more items.

        A count of 0 ends a list. After a negative count comes the block's size in bytes, which is not needed.
        """
        heads = reading[left[reading] == 0]
        if len(heads) == 0:
            return reading
        limits = end[heads]
        counts, behind = self._varint(node, at[heads], limits)
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            counts[sized] = -counts[sized]
            behind[sized] = self._varint(node, behind[sized], limits[sized])[1]
        most = (limits - behind) // sum(part.least_width for part in parts)
        is_wrong = (counts < 0) | (counts > most)
        if is_wrong.any():
            self._fail(
                node, is_wrong, limits, f"declares {counts[is_wrong][0]} items, more than its record can contain"
            )
        at[heads], left[heads] = behind, counts
        return reading[left[reading] > 0]

    def _varint(self, node: AvroNode, at: I64, end: I64) -> tuple[NDArray[Any], I64]:
        values, sizes = self._window.varints_at(at)
        if not sizes.all():
            self._fail(node, sizes == 0, end, "has an integer of more than 64 bits")
        return values, self._forward(node, at, sizes, end)

    def _forward(self, node: AvroNode, at: I64, size: int | I64, end: I64) -> I64:
        behind: I64 = at + size
        if (behind > end).any():
            self._fail(node, behind > end, end, "extends past the end of its record")
        return behind

    def _slices(self, begin: I64, behind: I64) -> Any:
        """Return the bytes from each `begin` up to `behind` as a binary array.

        Values and the gaps between them form one binary array over the content without a copy. Arrow's take then copies
        every second entry, so there is no loop over values.
        """
        if len(begin) == 0:
            return pa.array([], pa.binary())
        offsets = np.empty(2 * len(begin), np.int32)
        offsets[0::2], offsets[1::2] = begin, behind
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._window.data)]
        interleaved = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return pc.take(interleaved, pa.array(np.arange(0, len(offsets), 2)), boundscheck=False)

    def _decimals(self, node: AvroNode, behind: I64, lengths: I64) -> Any:
        """Return big-endian two's complement numbers of 1 to 16 bytes that end before `behind`."""
        low = self._window.at(behind - 8, ">i8").astype(np.int64)
        high = self._window.at(behind - 16, ">i8").astype(np.int64)
        missing = 8 * np.maximum(8 - lengths, 0)
        low = low << missing >> missing  # the arithmetic shift back extends the sign
        missing = 8 * np.clip(16 - lengths, 0, 7)
        high = np.where(lengths > 8, high << missing >> missing, low >> 63)
        return _checked(node, _array(node, len(low), np.stack([low, high], axis=1)))

    def _fail(self, node: AvroNode, is_wrong: Mask, end: I64, problem: str) -> NoReturn:
        record = self._first + int(np.searchsorted(self._ends, end[is_wrong][0]))
        place = f"column {node.path!r} of record {record}" if node.path else f"record {record}"
        raise CorruptTableError(f"Avro block: {place} {problem}", column=node.path, record=record)


_STEPS: dict[str, Callable[[_Reader, AvroNode, I64, I64, bool], Read]] = {
    "boolean": _Reader._fixed_width,
    "int": _Reader._integer,
    "long": _Reader._integer,
    "float": _Reader._fixed_width,
    "double": _Reader._fixed_width,
    "fixed": _Reader._fixed_width,
    "string": _Reader._text,
    "bytes": _Reader._text,
    "enum": _Reader._enum,
    "record": _Reader._record,
    "union": _Reader._union,
    "array": _Reader._list,
    "map": _Reader._map,
}


def _array(node: AvroNode, length: int, values: NDArray[Any]) -> Any:
    """Return an array of `length` items without nulls whose buffer is `values`."""
    # Arrow needs the buffer as bytes; items of a void dtype do not export one.
    memory = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return pa.Array.from_buffers(node.arrow, length, [None, pa.py_buffer(memory)])


def _checked(node: AvroNode, values: Any) -> Any:
    """Return times or decimals unchanged; raise CorruptTableError if one is outside the range of its type."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptTableError(
            f"column {node.path!r} has a number that is not a valid {node.arrow}: {error}", column=node.path
        ) from error
    return values


def _nothing(node: AvroNode) -> Any:
    return pa.array([], node.arrow)


def _ranks(counts: I64) -> I64:
    """Return the numbers from 0 up to each count, one range after the other: [2, 3] gives [0, 1, 0, 1, 2]."""
    begins = np.cumsum(counts) - counts
    ranks: I64 = np.arange(counts.sum()) - np.repeat(begins, counts)
    return ranks
