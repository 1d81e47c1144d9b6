"""Java objects as Kryo 4 serialises them: numbers, texts, the names of classes, objects that occur twice.

    value      bytes
    number     seven bits a byte, low bits first; all bytes but the last have the high bit set. The ninth byte of a
               long holds eight bits. Signed ones are zigzag
    text       80 null | 81 empty | ASCII, the last byte with its high bit set | number + 1 of UTF-16 units (the first
               byte: six bits, 40 more follow, 80 always set), then one to three bytes for each
    class      0 null | 1, its number in this stream, and its name where the number is new | 2 + its registered number
    object     0 null | 1 and its fields, by name in the order of the alphabet | 2 + its number: an object seen before

        01 00 [Lorg...DeleteRecord;  01 02   01 01 org...DeleteRecord  01   ...   01 01  02
        new class 0, its name        | |     new class 1                |          |     the object of number 0
                   first object, of number 0; 2 is 1 + its length      object 1    class 1, known

Objects are numbered when they begin. Those of the classes that wrap numbers (Integer, Long, Boolean, ...) have neither
mark nor number; texts have both. No object tells where it ends, so all are read one after the other.

See Kryo 4.0.2: https://github.com/EsotericSoftware/kryo/tree/kryo-parent-4.0.2/src/com/esotericsoftware/kryo
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lakehouse.errors import CorruptTableError, UnsupportedError

STRING = "java.lang.String"
#: Classes that every Kryo registers, by number; a wrapper class goes by the name of its primitive type.
PRIMITIVES = {
    0: "int",
    1: STRING,
    2: "float",
    3: "boolean",
    4: "byte",
    5: "char",
    6: "short",
    7: "long",
    8: "double",
    9: "void",
}
_NULL, _FIRST = 0, 1
_INT_SHIFT, _LONG_SHIFT = 28, 56
_MOST_SHOWN = 200
_ENDS_ASCII = re.compile(rb"[\x80-\xff]")
_FLOAT, _DOUBLE = struct.Struct(">f"), struct.Struct(">d")
_UNFINISHED = object()
Read = TypeVar("Read")


class KryoReader:
    """Reads one stream from its beginning; `registered` names classes by number, beside those of every Kryo.

    All methods raise CorruptTableError where the bytes end too early or mean nothing.
    """

    def __init__(self, content: bytes, registered: Mapping[int, str]) -> None:
        self.position = 0
        self._data = content
        self._registered = {**PRIMITIVES, **registered}
        self._names: list[str] = []
        self._objects: list[tuple[str, Any]] = []

    def is_at_end(self) -> bool:
        """Return whether all bytes are read."""
        return self.position == len(self._data)

    def corrupt(self, problem: str, at: int | None = None) -> CorruptTableError:
        """Return the error for a problem at a byte of the stream, here if not said."""
        where = self.position if at is None else at
        return CorruptTableError(f"Java objects are damaged: {problem}, at byte {where}", position=where)

    def unsigned(self) -> int:
        """Read an int that is never negative, such as a length."""
        at = self.position
        # Nearly all are marks and numbers of classes, of one byte.
        if at < len(self._data) and self._data[at] < 0x80:
            self.position = at + 1
            return self._data[at]
        value = self._groups(_INT_SHIFT)
        if value >= 1 << 31:
            raise self.corrupt(f"{value} is no length")
        return value

    def signed(self) -> int:
        """Read an int."""
        value = self._groups(_INT_SHIFT)
        if value >= 1 << 32:
            raise self.corrupt(f"{value} is no integer")
        return (value >> 1) ^ -(value & 1)

    def signed_long(self) -> int:
        """Read a long."""
        value = self._groups(_LONG_SHIFT)
        return (value >> 1) ^ -(value & 1)

    def plain_long(self) -> int:
        """Read a long of the form that is short for positive ones."""
        value = self._groups(_LONG_SHIFT)
        return value - (1 << 64) if value >= 1 << 63 else value

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def boolean(self) -> bool:
        """Read a boolean."""
        value = self.byte()
        if value > 1:
            raise self.corrupt(f"{value} is no boolean", self.position - 1)
        return value == 1

    def float32(self) -> float:
        """Read a float."""
        value: float = _FLOAT.unpack(self.take(_FLOAT.size))[0]
        return value

    def float64(self) -> float:
        """Read a double."""
        value: float = _DOUBLE.unpack(self.take(_DOUBLE.size))[0]
        return value

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        end = self.position + count
        if end > len(self._data):
            raise self.corrupt(f"they end within the {count} bytes that begin here")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def counted_bytes(self) -> bytes:
        """Read an array of bytes that is not null."""
        count = self.unsigned()
        if count == _NULL:
            raise self.corrupt("bytes are missing")
        return self.take(count - 1)

    def text(self) -> str | None:
        """Read a text."""
        begin = self.position
        if self.byte() < 0x80:
            end = _ENDS_ASCII.search(self._data, begin)
            if end is None:
                raise self.corrupt("a text does not end", begin)
            self.position = end.end()
            return (self._data[begin : end.start()] + bytes((self._data[end.start()] & 0x7F,))).decode("ascii")
        units = self._text_length(begin) - 1
        if units < 0:
            return None
        ascii_text = self._data[self.position : self.position + units]
        if ascii_text.isascii():
            return self.take(units).decode("ascii")
        return self._wide_text(units)

    def class_name(self) -> str | None:
        """Read a class; return its name, None for null. UnsupportedError if it is known by a strange number only."""
        at = self.position
        number = self.unsigned()
        if number == _NULL:
            return None
        if number > 1:
            name = self._registered.get(number - 2)
            if name is None:
                raise UnsupportedError(
                    f"Java objects hold one of an unknown class, registered as {number - 2}, at byte {at}",
                    registered=number - 2,
                    position=at,
                )
            return name
        known = self.unsigned()
        if known > len(self._names):
            raise self.corrupt(f"class {known} has no name", at)
        if known == len(self._names):
            self._names.append(self.text() or "")
        return self._names[known]

    def shared(self, name: str, read: Callable[[KryoReader], Read]) -> Read | None:
        """Read an object of class `name`, with `read` if it is not one seen before; None for null."""
        at = self.position
        mark = self.unsigned()
        if mark == _NULL:
            return None
        if mark == _FIRST:
            number = len(self._objects)
            self._objects.append((name, _UNFINISHED))
            value = read(self)
            self._objects[number] = (name, value)
            return value
        if mark - 2 >= len(self._objects):
            raise self.corrupt(f"there is no object {mark - 2}", at)
        stored, found = self._objects[mark - 2]
        if stored != name or found is _UNFINISHED:
            raise self.corrupt(f"object {mark - 2} is no {shown(name)}", at)
        same: Read = found
        return same

    def _groups(self, last: int) -> int:
        """Read groups of seven bits; the one shifted by `last` is of eight."""
        value = shift = 0
        try:
            while True:
                byte = self._data[self.position]
                self.position += 1
                if shift == last:
                    return value | byte << shift
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    return value
                shift += 7
        except IndexError:
            raise self.corrupt("they end within a number") from None

    def _text_length(self, begin: int) -> int:
        """Read a length whose first byte has six bits of it."""
        first = self._data[begin]
        if not first & 0x40:
            return first & 0x3F
        rest = self._groups(_INT_SHIFT)
        length = (first & 0x3F) | rest << 6
        if length >= 1 << 31:
            raise self.corrupt(f"{length} is no length of a text", begin)
        return length

    def _wide_text(self, units: int) -> str:
        """Read a text of so many UTF-16 units, of which some take several bytes."""
        begin = end = self.position
        for _ in range(units):
            if end >= len(self._data):
                raise self.corrupt("a text does not end", begin)
            lead = self._data[end]
            end += 1 if lead < 0x80 else 2 if lead < 0xE0 else 3
        try:
            # Java writes the two halves of a character beyond 16 bits one by one.
            halves = self.take(end - begin).decode("utf-8", "surrogatepass")
            return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"a text is none: {error.reason}", begin) from error


def shown(name: str) -> str:
    """Return the name of a class as errors show it, which may be any bytes."""
    return repr(name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}...")
