"""Decode messages of Protocol Buffers into Arrow columns, all messages of a batch at once.

    message   tag, value | tag, value | ...       tag = 8 * number of the field + wire type

There is one cursor for each message. A step reads the next tag and the place of its value at all cursors, and yields
one entry for each message; messages at their end leave the step. The entries are then divided by field, and each field
is decoded by one vectorised load for all messages. So the number of steps is that of the values in the longest message,
and not that of all messages. A message that is much longer than the others is walked value by value.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.avro.varints import I64, MARGIN, U64, Window, unzigzag
from lakehouse.core.format.protobuf.nodes import (
    BYTES,
    DURATION,
    FIXED32,
    FIXED64,
    MAP,
    TIMESTAMP,
    VARINT,
    WRAPPER,
    ProtoField,
    ProtoMessage,
)
from lakehouse.core.format.spread import spread
from lakehouse.errors import UserError

_FIXED = {"double": "<f8", "float": "<f4", "fixed32": "<u4", "sfixed32": "<i4", "fixed64": "<u8", "sfixed64": "<i8"}
#: Steps after which few cursors are walked one by one, and the number that is few.
_STEPS, _FEW = 64, 16
_EXAMPLE_BYTES = 60
#: The bounds of times; durations have narrower ones.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 315_576_000_000
_MOST_NUMBER = (1 << 29) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownField:
    """A field that the schema lacks: its path with its number, the number of messages, and the start of one value."""

    path: tuple[str, ...]
    messages: int
    example: str


@dataclass(frozen=True, slots=True)
class _Entries:
    """Values on the wire: the position of their message, field number, wire type, first and last byte, varint."""

    owner: I64
    number: I64
    wire: I64
    begin: I64
    end: I64
    raw: U64

    def take(self, rows: Any) -> _Entries:
        return _Entries(*(getattr(self, name)[rows] for name in _Entries.__slots__))


_NO_NUMBERS: I64 = np.zeros(0, np.int64)
_NOTHING = _Entries(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS.view(np.uint64))


def _joined(parts: list[_Entries]) -> _Entries:
    if len(parts) == 1:
        return parts[0]
    return _Entries(*(np.concatenate([getattr(one, name) for one in parts]) for name in _Entries.__slots__))


def decode_messages(values: pa.Array, message: ProtoMessage) -> tuple[pa.StructArray, tuple[UnknownField, ...]]:
    """Return the messages in a binary array without nulls as structs, and the fields that their type lacks.

    Absent fields are null, also lists, maps and fields without presence.

    Raises:
        UserError: A value is not a message of this type: a length does not fit, or text is not UTF-8.
    """
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    reader = _Reader(Window(data[offsets[0] : offsets[-1]]))
    bounds = offsets.astype(np.int64) - offsets[0] + MARGIN
    result = reader.structs(message, bounds[:-1], bounds[1:], np.arange(len(values)), ())
    return result, tuple(reader.unknown)


class _Reader:
    """Reads messages that are in one window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.unknown: list[UnknownField] = []

    # parameters: the messages, with their type, their outermost messages and the path to them
    def structs(
        self, message: ProtoMessage, starts: I64, ends: I64, roots: I64, path: tuple[str, ...]
    ) -> pa.StructArray:
        """Return messages of one type, which begin and end at these bytes."""
        entries = self._entries(starts, ends)
        columns = []
        for one in message.fields:
            own = entries.pop(one.number, _NOTHING)
            fits = (own.wire == one.wire) | ((own.wire == BYTES) & one.is_repeated)
            if not fits.all():
                entries[one.number], own = own.take(~fits), own.take(fits)
            columns.append(self._column(one, own, len(starts), roots, (*path, one.name)))
        for number, unknown in sorted(entries.items()):
            self._note(number, unknown, roots, path)
        if not columns:
            return pa.array([{}] * len(starts), pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=list(message.arrow))

    def _column(self, one: ProtoField, entries: _Entries, count: int, roots: I64, path: tuple[str, ...]) -> Any:
        if one.is_repeated:
            entries = entries.take(np.argsort(entries.owner, kind="stable"))
            return self._list(one, entries, count, roots, path)
        # The last value of a field counts; the parts of a message are merged.
        if one.message is not None and len(np.unique(entries.owner)) < len(entries.owner):
            return self._merged(one, entries, count, roots, path)
        if len(entries.owner) == count and (np.diff(entries.owner) == 1).all():
            return self._values(one, entries, roots, path)
        last = np.full(count, -1, np.int64)
        last[entries.owner] = np.arange(len(entries.owner))
        has_value = last >= 0
        values = self._values(one, entries.take(last[has_value]), roots, path)
        return spread(values, has_value, nullable=True)

    def _values(self, one: ProtoField, entries: _Entries, roots: I64, path: tuple[str, ...]) -> Any:
        """Return one value for each entry."""
        if one.message is None:
            return self._scalars(one, entries.begin, entries.end, entries.raw)
        inner = self.structs(one.message, entries.begin, entries.end, roots[entries.owner], path)
        if one.kind in (TIMESTAMP, DURATION):
            seconds, nanos = (np.asarray(pc.fill_null(inner.field(place), 0)).astype(np.int64) for place in (0, 1))
            if ((seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)).any():
                raise UserError(f"field {one.name!r} has a time outside of the years 1 to 9999")
            return pa.array(seconds * 1_000_000 + nanos // 1000).cast(one.value_type)
        if one.kind == WRAPPER:
            return pc.fill_null(inner.field(0), pa.scalar(one.message.fields[0].default, one.value_type))
        return inner

    def _merged(self, one: ProtoField, entries: _Entries, count: int, roots: I64, path: tuple[str, ...]) -> Any:
        """Read messages that come in several parts: parts one after the other are the merged message."""
        data = self._window.data.data
        parts: dict[int, list[bytes]] = {}
        for owner, begin, end in zip(entries.owner.tolist(), entries.begin.tolist(), entries.end.tolist(), strict=True):
            parts.setdefault(owner, []).append(bytes(data[begin:end]))
        owners = np.array(sorted(parts), np.int64)
        bodies = [b"".join(parts[owner]) for owner in owners.tolist()]
        ends = np.cumsum([len(body) for body in bodies]).astype(np.int64) + MARGIN
        begins = np.concatenate([np.full(1, MARGIN, np.int64), ends[:-1]])
        reader = _Reader(Window(np.frombuffer(b"".join(bodies), np.uint8)))
        zero = np.zeros(len(owners), np.int64)
        joined = _Entries(owners, zero, zero, begins, ends, zero.view(np.uint64))
        has_value = np.zeros(count, np.bool_)
        has_value[owners] = True
        values = reader._values(one, joined, roots, path)
        self.unknown += reader.unknown
        return spread(values, has_value, nullable=True)

    def _list(self, one: ProtoField, entries: _Entries, count: int, roots: I64, path: tuple[str, ...]) -> Any:
        if one.message is None and one.wire != BYTES:
            items, owners = self._packed(one, entries)
        else:
            items, owners = self._values(one, entries, roots, path), entries.owner
        if one.kind == MAP:
            return _maps(one, items, owners, count)
        absent = np.bincount(owners, minlength=count) == 0
        return pa.ListArray.from_arrays(_offsets(owners, count), items, type=one.arrow, mask=pa.array(absent))

    def _packed(self, one: ProtoField, entries: _Entries) -> tuple[Any, I64]:
        """Return the numbers of lists, of which an entry has one or, packed, several, and their owners."""
        lengths = entries.end - entries.begin
        if one.wire in (FIXED32, FIXED64):
            width = 4 if one.wire == FIXED32 else 8
            if (lengths % width).any():
                raise UserError(f"field {one.name!r} has a packed list that ends inside of a number")
            counts = lengths // width
            begins = np.repeat(entries.begin, counts) + width * _ranks(counts)
            raw = np.zeros(len(begins), np.uint64)
        else:
            places = np.repeat(entries.begin, lengths) + _ranks(lengths)
            is_last = self._window.bytes_at(places) < 0x80
            spans = np.repeat(np.arange(len(lengths)), lengths)
            ends_span = np.ones(len(places), np.bool_)
            ends_span[:-1] = spans[1:] != spans[:-1]
            if (ends_span & ~is_last).any():
                raise UserError(f"field {one.name!r} has a packed list that ends inside of a number")
            is_first = np.ones(len(places), np.bool_)
            is_first[1:] = is_last[:-1]
            begins = places[is_first]
            counts = np.bincount(spans[is_first], minlength=len(lengths))
            raw, sizes = self._window.raw_varints_at(begins)
            if not sizes.all():
                raise UserError(f"field {one.name!r} has a number of more than 64 bits")
        return self._scalars(one, begins, begins, raw), np.repeat(entries.owner, counts)

    def _scalars(self, one: ProtoField, begin: I64, end: I64, raw: U64) -> Any:
        if one.kind in _FIXED:
            numbers: NDArray[Any] = self._window.at(begin, _FIXED[one.kind])
            if one.kind == "fixed64":
                return _unsigned(numbers.astype(np.uint64))
            return pa.array(numbers, one.value_type) if one.kind != "fixed32" else pa.array(numbers.astype(np.int64))
        if one.wire == BYTES:
            return self._texts(one, begin, end)
        if one.kind == "uint64":
            return _unsigned(raw)
        if one.kind == "uint32":
            return pa.array((raw & np.uint64(0xFFFFFFFF)).astype(np.int64))
        if one.kind == "bool":
            return pa.array(raw != 0)
        if one.kind in ("sint32", "sint64"):
            signed = unzigzag(raw)
            return pa.array(signed.astype(np.int32)) if one.kind == "sint32" else pa.array(signed)
        numbers = raw.view(np.int64)
        if one.kind == "int64":
            return pa.array(numbers)
        small = numbers.astype(np.int32)
        if one.kind == "int32":
            return pa.array(small)
        known, places = np.unique(small, return_inverse=True)
        names = pa.array([one.symbols.get(number, str(number)) for number in known.tolist()], pa.string())
        return names.take(pa.array(places))

    def _texts(self, one: ProtoField, begin: I64, end: I64) -> Any:
        if not len(begin):
            return pa.array([], one.value_type)
        # Values and the gaps between them form one array over the content, of which every second entry is taken.
        offsets = np.empty(2 * len(begin), np.int32)
        offsets[0::2], offsets[1::2] = begin, end
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._window.data)]
        interleaved = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        values = interleaved.take(pa.array(np.arange(0, len(offsets), 2)))
        if one.kind == "bytes":
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise UserError(f"field {one.name!r} has text that is not UTF-8") from error

    def _entries(self, starts: I64, ends: I64) -> dict[int, _Entries]:
        """Return the values of messages by the number of their field, in the order of each message."""
        found: list[_Entries] = []
        at, active, steps = starts.copy(), np.flatnonzero(starts < ends), 0
        while len(active):
            if steps > _STEPS and len(active) <= _FEW:
                found += [self._walk(owner, int(at[owner]), int(ends[owner])) for owner in active.tolist()]
                break
            entries = self._step(active, at[active], ends[active])
            found.append(entries)
            at[active] = entries.end
            active = active[entries.end < ends[active]]
            steps += 1
        pieces: dict[int, list[_Entries]] = {}
        for one in found:
            # Writers write fields in the order of their numbers, so most steps meet one field in all messages.
            if (one.number == one.number[0]).all():
                pieces.setdefault(int(one.number[0]), []).append(one)
                continue
            for number in np.unique(one.number).tolist():
                pieces.setdefault(number, []).append(one.take(one.number == number))
        return {number: _joined(parts) for number, parts in pieces.items()}

    def _step(self, owners: I64, at: I64, ends: I64) -> _Entries:
        tags, sizes = self._window.raw_varints_at(at)
        number, wire = (tags >> np.uint64(3)).astype(np.int64), (tags & np.uint64(7)).astype(np.int64)
        begin = at + sizes
        raw, widths = self._window.raw_varints_at(np.minimum(begin, ends))
        is_text = wire == BYTES
        length = np.where(
            is_text, raw.view(np.int64), np.where(wire == VARINT, widths, np.where(wire == FIXED64, 8, 4))
        )
        first = begin + np.where(is_text, widths, 0)
        is_wrong = (sizes == 0) | (number < 1) | (number > _MOST_NUMBER) | (first > ends)
        is_wrong |= ((wire == VARINT) | is_text) & (widths == 0)
        is_wrong |= (length < 0) | (length > ends - first) | ~np.isin(wire, (VARINT, FIXED64, BYTES, FIXED32))
        if is_wrong.any():
            raise UserError("it is cut off, or its bytes are not a message")
        return _Entries(owners, number, wire, first, first + length, raw)

    def _walk(self, owner: int, at: int, end: int) -> _Entries:
        """Return the rest of the values of one message."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        data = self._window.data.data
        while at < end:
            tag, begin = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            raw, first = 0, begin
            if wire == VARINT:
                raw, behind = _varint(data, begin)
            elif wire == BYTES:
                length, first = _varint(data, begin)
                behind = first + length
            else:
                behind = begin + {FIXED64: 8, FIXED32: 4}.get(wire, 1 << 62)
            if behind > end or not 1 <= number <= _MOST_NUMBER:
                raise UserError("it is cut off, or its bytes are not a message")
            rows.append((owner, number, wire, first, behind, raw))
            at = behind
        owners, numbers, wires, begins, ends = np.array([one[:5] for one in rows], np.int64).T
        return _Entries(owners, numbers, wires, begins, ends, np.array([one[5] for one in rows], np.uint64))

    def _note(self, number: int, entries: _Entries, roots: I64, path: tuple[str, ...]) -> None:
        """Collect the values of a field that the type lacks."""
        data = self._window.data[entries.begin[0] : entries.end[0]].tobytes()[:_EXAMPLE_BYTES]
        example = str(entries.raw[0]) if entries.wire[0] == VARINT else base64.b64encode(data).decode()
        count = len(np.unique(roots[entries.owner]))
        self.unknown.append(UnknownField(path=(*path, f"#{number}"), messages=count, example=example))


def _maps(one: ProtoField, entries: pa.StructArray, owners: I64, count: int) -> Any:
    """Return maps of entries; of equal keys the last entry counts."""
    assert one.message is not None, "a map has a type of entries"
    key_field, value_field = one.message.fields
    keys = pc.fill_null(entries.field(0), pa.scalar(key_field.default, key_field.arrow))
    values = entries.field(1)
    if value_field.default is not None:
        values = pc.fill_null(values, pa.scalar(value_field.default, value_field.arrow))
    codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
    identity = owners * (int(codes.max(initial=0)) + 1) + codes
    last = len(identity) - 1 - np.unique(identity[::-1], return_index=True)[1]
    rows = np.sort(last)
    taken = pa.array(rows)
    absent = pa.array(np.bincount(owners, minlength=count) == 0)
    offsets = _offsets(owners[rows], count)
    return pa.MapArray.from_arrays(offsets, keys.take(taken), values.take(taken), type=one.arrow, mask=absent)


def _offsets(owners: I64, count: int) -> Any:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _ranks(counts: I64) -> I64:
    """Return the numbers from 0 up to each count, one range after the other."""
    ranks: I64 = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _unsigned(raw: U64) -> Any:
    """Return numbers of 64 bits without sign as decimals."""
    memory = np.zeros((len(raw), 2), np.uint64)
    memory[:, 0] = raw
    return pa.Array.from_buffers(
        pa.decimal128(20, 0), len(raw), [None, pa.py_buffer(memory.reshape(-1).view(np.uint8))]
    )


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    raw, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise UserError("it has a number of more than 64 bits")
