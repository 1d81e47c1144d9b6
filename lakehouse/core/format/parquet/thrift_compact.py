"""Thrift's compact protocol, the encoding of Parquet footers: structs with any fields, unknown ones included.

field    (difference of ids << 4 | type), or (type, zigzag id) if the difference is not 1 to 15; 0 ends a struct
numbers  zigzag varints; a double is 8 bytes, a byte is 1; bytes and texts: their length as varint, then they
list     (size << 4 | type), or (0xF0 | type, size as varint) from 15 on; a bool in a list is a byte
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import CorruptTableError

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS = (I16, I32, I64)
_LONG = 15
_MAX_DEPTH = 32
# Ten groups of seven bits.
_MAX_BITS = 70


@dataclass(slots=True)
class Struct:
    """Fields by id, each with its type. A list is (type, values), a map is (types, pairs)."""

    fields: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def get(self, number: int, default: Any = None) -> Any:
        """Return the value of a field, or `default`."""
        entry = self.fields.get(number)
        return default if entry is None else entry[1]

    def set(self, number: int, value: Any, kind: int) -> None:
        """Set the value of a field."""
        self.fields[number] = (kind, value)

    def drop(self, *numbers: int) -> None:
        """Remove fields if they exist."""
        for number in numbers:
            self.fields.pop(number, None)

    def copy(self) -> Struct:
        """Return a shallow copy of the struct."""
        return Struct(dict(self.fields))

    def structs(self, number: int) -> list[Struct]:
        """Return the structs of a list field."""
        entry = self.get(number)
        return [] if entry is None else entry[1]


def decode_struct(data: bytes | memoryview) -> Struct:
    """Decode the struct at the start of the bytes; raise CorruptTableError if they are invalid."""
    try:
        return _Reader(memoryview(data)).struct(0)
    except (IndexError, ValueError) as error:
        raise CorruptTableError(f"the bytes are not a struct in Thrift's compact protocol: {error}") from error


def encode_struct(struct: Struct) -> bytes:
    """Return the bytes of a struct."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def struct(self, depth: int) -> Struct:
        struct, number = Struct(), 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            value = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
            struct.fields[number] = (TRUE if kind == FALSE else kind, value)
        return struct

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("structs, lists and maps are nested too deep")
        if kind in _INTEGERS:
            return self._zigzag()
        if kind in (BYTE, TRUE, FALSE):
            return self._byte()
        if kind == DOUBLE:
            return self._take(8)
        if kind == BINARY:
            return self._take(self._varint())
        if kind in (LIST, SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < _LONG else self._varint()
            return head & 0x0F, [self._value(head & 0x0F, depth + 1) for _ in range(self._possible(size))]
        if kind == MAP:
            size = self._possible(self._varint())
            kinds = self._byte() if size else 0
            inner = depth + 1
            pairs = [(self._value(kinds >> 4, inner), self._value(kinds & 0x0F, inner)) for _ in range(size)]
            return kinds, pairs
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"type {kind} is unknown")

    def _possible(self, size: int) -> int:
        if size > len(self._data) - self._at:
            raise ValueError(f"{size} values in {len(self._data) - self._at} bytes")
        return size

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, size: int) -> bytes:
        self._at += self._possible(size)
        return bytes(self._data[self._at - size : self._at])

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= _MAX_BITS:
                raise ValueError("a number has more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(struct.fields.items()):
        is_flag = kind == TRUE
        code = FALSE if is_flag and not value else kind
        if 0 < number - last <= _LONG:
            out.append((number - last) << 4 | code)
        else:
            out.append(code)
            _write_varint(out, _to_zigzag(number))
        last = number
        if not is_flag:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _write_varint(out, _to_zigzag(value))
    elif kind in (BYTE, TRUE, FALSE):
        out.append(value)
    elif kind == DOUBLE:
        out += value
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind in (LIST, SET):
        inner, values = value
        if len(values) < _LONG:
            out.append(len(values) << 4 | inner)
        else:
            out.append(0xF0 | inner)
            _write_varint(out, len(values))
        for each in values:
            _write_value(out, inner, each)
    elif kind == MAP:
        kinds, pairs = value
        _write_varint(out, len(pairs))
        if pairs:
            out.append(kinds)
        for key, held in pairs:
            _write_value(out, kinds >> 4, key)
            _write_value(out, kinds & 0x0F, held)
    else:
        assert kind == STRUCT, f"type {kind} was never read"
        _write_struct(out, value)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _to_zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
