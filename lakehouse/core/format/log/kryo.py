"""Read Java objects that Kryo 4 serialized: numbers, strings, class names and references to earlier objects.

    value      bytes
    number     seven bits per byte, low bits first; all bytes but the last have the high bit set. The ninth byte of a
               long has eight bits. Signed numbers are zigzag encoded
    text       80 null | 81 empty | ASCII, the last byte with its high bit set | number + 1 of UTF-16 units (the first
               byte: six bits, 40 more follow, 80 always set), then one to three bytes for each
    class      0 null | 1, its number in this stream, and its name if the number is new | 2 + its registered number
    object     0 null | 1 and its fields in alphabetical order | 2 + the number of an earlier object

        01 00 [Lorg...DeleteRecord;  01 02   01 01 org...DeleteRecord  01   ...   01 01  02
        new class 0, its name        | |     new class 1                |          |     reference to object 0
                   new object 0; 2 is 1 + its length                   object 1    class 1 again

An object gets its number before its fields are read. Objects of the wrapper classes (Integer, Long, Boolean, ...) have
no such first byte and no number; strings have both. Objects do not contain their length, so they are read in sequence.

See Kryo 4.0.2: https://github.com/EsotericSoftware/kryo/tree/kryo-parent-4.0.2/src/com/esotericsoftware/kryo
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lakehouse.errors import CorruptTableError, UnsupportedError

STRING = "java.lang.String"
#: Classes that Kryo registers by default, by number; a wrapper class has the name of its primitive type.
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
    """Reads one stream from its start; `registered` has the names of further registered classes by number.

    All methods raise CorruptTableError if the stream ends too early or its bytes are not a valid value.
    """

    def __init__(self, content: bytes, registered: Mapping[int, str]) -> None:
        self.position = 0
        self._data = content
        self._registered = {**PRIMITIVES, **registered}
        self._names: list[str] = []
        self._objects: list[tuple[str, Any]] = []

    def is_at_end(self) -> bool:
        """Return whether the whole stream was read."""
        return self.position == len(self._data)

    def corrupt(self, problem: str, at: int | None = None) -> CorruptTableError:
        """Return the error for a problem at byte `at` of the stream, by default the current position."""
        position = self.position if at is None else at
        return CorruptTableError(f"Java objects are damaged: {problem}, at byte {position}", position=position)

    def unsigned(self) -> int:
        """Read a non-negative int, such as a length."""
        at = self.position
        # Fast path: usually numbers have one byte, because they are class and object references.
        if at < len(self._data) and self._data[at] < 0x80:
            self.position = at + 1
            return self._data[at]
        value = self._groups(_INT_SHIFT)
        if value >= 1 << 31:
            raise self.corrupt(f"{value} is not a valid length")
        return value

    def signed(self) -> int:
        """Read an int."""
        value = self._groups(_INT_SHIFT)
        if value >= 1 << 32:
            raise self.corrupt(f"{value} is not a 32-bit integer")
        return (value >> 1) ^ -(value & 1)

    def signed_long(self) -> int:
        """Read a long."""
        value = self._groups(_LONG_SHIFT)
        return (value >> 1) ^ -(value & 1)

    def plain_long(self) -> int:
        """Read a long that is not zigzag encoded, so that only positive numbers are short."""
        value = self._groups(_LONG_SHIFT)
        return value - (1 << 64) if value >= 1 << 63 else value

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def boolean(self) -> bool:
        """Read a boolean."""
        value = self.byte()
        if value > 1:
            raise self.corrupt(f"{value} is not a boolean", self.position - 1)
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
        """Return the next `count` bytes."""
        end = self.position + count
        if end > len(self._data):
            raise self.corrupt(f"the stream ends inside the {count} bytes that start here")
        data = self._data[self.position : end]
        self.position = end
        return data

    def counted_bytes(self) -> bytes:
        """Read an array of bytes that is not null."""
        count = self.unsigned()
        if count == _NULL:
            raise self.corrupt("an array of bytes is null")
        return self.take(count - 1)

    def text(self) -> str | None:
        """Read a string; None for null."""
        begin = self.position
        if self.byte() < 0x80:
            end = _ENDS_ASCII.search(self._data, begin)
            if end is None:
                raise self.corrupt("a text has no end", begin)
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
        """Read a class and return its name, None for null; UnsupportedError for an unknown registered number."""
        at = self.position
        number = self.unsigned()
        if number == _NULL:
            return None
        if number > 1:
            name = self._registered.get(number - 2)
            if name is None:
                raise UnsupportedError(
                    f"Java objects contain an object of an unknown class, registered as {number - 2}, at byte {at}",
                    registered=number - 2,
                    position=at,
                )
            return name
        index = self.unsigned()
        if index > len(self._names):
            raise self.corrupt(f"class {index} has no name", at)
        if index == len(self._names):
            self._names.append(self.text() or "")
        return self._names[index]

    def shared(self, name: str, read: Callable[[KryoReader], Read]) -> Read | None:
        """Return an object of class `name`: a new one, which `read` reads, or an earlier one; None for null."""
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
            raise self.corrupt(f"object {mark - 2} does not exist", at)
        stored_name, stored = self._objects[mark - 2]
        if stored_name != name or stored is _UNFINISHED:
            raise self.corrupt(f"object {mark - 2} is not a {quoted_class(name)}", at)
        same: Read = stored
        return same

    def _groups(self, last: int) -> int:
        """Read groups of seven bits; the group with the shift `last` has eight bits and ends the number."""
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
            raise self.corrupt("the stream ends inside a number") from None

    def _text_length(self, begin: int) -> int:
        """Read the length of a string, of which the first byte, already read, has six bits."""
        first = self._data[begin]
        if not first & 0x40:
            return first & 0x3F
        rest = self._groups(_INT_SHIFT)
        length = (first & 0x3F) | rest << 6
        if length >= 1 << 31:
            raise self.corrupt(f"{length} is not a valid length of a text", begin)
        return length

    def _wide_text(self, units: int) -> str:
        """Read a string with this many UTF-16 units, some of which have several bytes."""
        begin = end = self.position
        for _ in range(units):
            if end >= len(self._data):
                raise self.corrupt("a text has no end", begin)
            lead = self._data[end]
            end += 1 if lead < 0x80 else 2 if lead < 0xE0 else 3
        try:
            # Java encodes the two surrogates of a character above 16 bits separately.
            halves = self.take(end - begin).decode("utf-8", "surrogatepass")
            return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"a text is not valid UTF-16: {error.reason}", begin) from error


def quoted_class(name: str) -> str:
    """Return a class name for an error message, quoted and truncated, because damaged names can have any characters."""
    return repr(name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}...")
