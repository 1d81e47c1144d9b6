"""Decode delete blocks of versions 1 and 2, which contain Java objects serialized by Kryo (DATA-4.4).

    version   written by Hudi     object
    1         up to 0.10          HoodieKey[]: partitionPath, recordKey
    2         0.11 to 0.13        DeleteRecord[]: hoodieKey, orderingVal

Ordering values are described in `delete_java_values.py`; several ordering columns have an ArrayComparable of such
values.

Avro's class Utf8 has three forms. Since Hudi 0.12.2 it has a registered number and its value is an array of bytes.
Earlier, Kryo wrote the fields of the class: `bytes, length, string` with Avro 1.8 and `bytes, hash, length, string`
with later versions. The block does not contain the version, so the decoder tries both and takes the one that parses
the whole content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lakehouse.core.format.log.delete_entries import MOST_COLUMNS, Wrapper
from lakehouse.core.format.log.delete_java_values import NO_ORDERING, NULL, PLAIN, SHARED, UTF8, Value, utf8_text
from lakehouse.core.format.log.kryo import STRING, KryoReader, quoted_class
from lakehouse.errors import CorruptTableError, UnsupportedError

_Key: TypeAlias = tuple[str, str | None]
_Entry: TypeAlias = tuple[_Key, Value]

_HOODIE_KEY = "org.apache.hudi.common.model.HoodieKey"
_DELETE_RECORD = "org.apache.hudi.common.model.DeleteRecord"
_ARRAY_COMPARABLE = "org.apache.hudi.common.util.collection.ArrayComparable"
_COMPARABLES = "[Ljava.lang.Comparable;"
_BYTES = "[B"
#: The class names of Utf8 if it is written by fields. Hudi's bundle for Flink contains a relocated copy of Avro.
_FIELDED_UTF8 = frozenset(("org.apache.avro.util.Utf8", "org.apache.hudi.org.apache.avro.util.Utf8"))
#: The numbers with which Hudi 0.12 and 0.13 register Utf8.
_REGISTERED = {10: UTF8, 27: UTF8}
#: Bound for the strings that objects share. A shared string is copied for each object in the columns, so a small
#: damaged block could otherwise need much memory.
_MOST_SHARED_CHARACTERS = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDeletes:
    """Entries of a delete block in its order, as parallel lists with one item per entry."""

    keys: list[str]
    partitions: list[str | None]
    values: list[Value]


def decode_objects(content: bytes, version: int) -> ObjectDeletes:
    """Return the entries of a delete block with version 1 or 2.

    Raises CorruptTableError if the content is too short, too long or invalid, or if an entry has no key. Raises
    UnsupportedError for an object of an unknown class. Both messages name the byte and, if possible, the class.
    """
    results: list[ObjectDeletes] = []
    problem: CorruptTableError | UnsupportedError | None = None
    for has_hash in (True, False):
        objects = _Objects(KryoReader(content, _REGISTERED), has_hash)
        try:
            results.append(_columns(objects.read(version), len(content)))
        except (CorruptTableError, UnsupportedError) as error:
            problem = problem or error
        if not objects.has_fielded_utf8:
            break
    if problem is not None and not results:
        raise problem
    if results[0] != results[-1]:
        raise UnsupportedError(
            "a delete block has strings that are valid both for Avro 1.8 and for later versions, with different values",
            version=version,
        )
    return results[0]


class _Objects:
    """Reads the objects of one block; `has_hash` tells whether Utf8 has the field `hash`."""

    def __init__(self, reader: KryoReader, has_hash: bool) -> None:
        self.has_fielded_utf8 = False
        self._reader = reader
        self._has_hash = has_hash
        self._reads: dict[str, Callable[[KryoReader], Value]] = {
            **SHARED,
            **dict.fromkeys(_FIELDED_UTF8, self._fielded_utf8),
            _ARRAY_COMPARABLE: self._array,
        }

    def read(self, version: int) -> list[_Entry]:
        """Return all entries of the block."""
        item = _HOODIE_KEY if version == 1 else _DELETE_RECORD
        array, reader = f"[L{item};", self._reader
        name = reader.class_name()
        if name != array:
            raise reader.corrupt(
                f"a delete block of version {version} has the object {quoted_class(name or 'null')}; expected {array}",
                0,
            )
        read = self._record if version == 2 else lambda reader: (_key(reader), NO_ORDERING)
        entries: list[_Entry] | None = reader.shared(array, lambda reader: self._entries(item, read))
        if entries is None:
            raise reader.corrupt("the array of entries is null")
        if not reader.is_at_end():
            raise reader.corrupt(f"other bytes follow the {len(entries)} entries")
        return entries

    def _entries(self, item: str, read: Callable[[KryoReader], _Entry]) -> list[_Entry]:
        reader = self._reader
        count = reader.unsigned()
        if count == 0:
            raise reader.corrupt("the array of entries is null")
        entries = []
        # A loop over entries is needed: objects do not contain their length, and later ones refer to earlier ones.
        for _ in range(count - 1):
            entry = self._of_class(item, read)
            if entry is None:
                raise reader.corrupt("an entry is null")
            entries.append(entry)
        return entries

    def _of_class(self, expected: str, read: Callable[[KryoReader], Any]) -> Any:
        at = self._reader.position
        name = self._reader.class_name()
        if name is not None and name != expected:
            raise UnsupportedError(
                f"a delete block has an object of the class {quoted_class(name)} at byte {at}; expected {expected}",
                name=name,
                position=at,
            )
        return None if name is None else self._reader.shared(expected, read)

    def _record(self, reader: KryoReader) -> _Entry:
        key = self._of_class(_HOODIE_KEY, _key)
        if key is None:
            raise reader.corrupt("an entry has no key")
        return key, self._value()

    def _value(self, *, in_array: bool = False) -> Value:
        reader = self._reader
        at = reader.position
        name = reader.class_name()
        if name is None:
            return NULL
        if name in PLAIN:
            wrapper, plain = PLAIN[name]
            return wrapper, plain(reader)
        if name == STRING:
            text = reader.shared(STRING, KryoReader.text)
            value = None if text is None else (Wrapper.STRING, text)
        elif name in self._reads and not (in_array and name == _ARRAY_COMPARABLE):
            value = reader.shared(name, self._reads[name])
        else:
            raise UnsupportedError(
                f"a delete block has an ordering value of the unknown class {quoted_class(name)} at byte {at}",
                name=name,
                position=at,
            )
        if value is None:
            raise reader.corrupt(f"an object of the class {name} is null", at)
        return value

    def _array(self, reader: KryoReader) -> Value:
        items = self._of_class(_COMPARABLES, self._items)
        if items is None:
            raise reader.corrupt("an array of ordering values is null")
        return Wrapper.ARRAY, items

    def _items(self, reader: KryoReader) -> tuple[Value, ...]:
        count = reader.unsigned() - 1
        if not 0 <= count <= MOST_COLUMNS:
            raise reader.corrupt(f"an array has {count} ordering values; at most {MOST_COLUMNS} are possible")
        return tuple(self._value(in_array=True) for _ in range(count))

    def _fielded_utf8(self, reader: KryoReader) -> Value:
        self.has_fielded_utf8 = True
        at = reader.position
        data = reader.shared(_BYTES, KryoReader.counted_bytes)
        if self._has_hash:
            reader.signed()
        length = reader.signed()
        text = reader.shared(STRING, KryoReader.text)
        if data is None or not 0 <= length <= len(data):
            raise reader.corrupt(f"a text declares {length} bytes, more than its array of bytes has", at)
        value = utf8_text(reader, data[:length])
        if text is not None and text != value:
            raise reader.corrupt("a text's bytes and its string differ", at)
        return Wrapper.STRING, value


def _key(reader: KryoReader) -> _Key:
    partition = reader.shared(STRING, KryoReader.text)
    key = reader.shared(STRING, KryoReader.text)
    if key is None:
        raise reader.corrupt("a key is null")
    return key, partition


def _columns(entries: list[_Entry], size_bytes: int) -> ObjectDeletes:
    keys = [key for (key, _), _ in entries]
    partitions = [partition for (_, partition), _ in entries]
    values = [value for _, value in entries]
    characters = sum(map(len, keys)) + sum(len(partition or "") for partition in partitions) + sum(map(_size, values))
    if characters > size_bytes + _MOST_SHARED_CHARACTERS:
        raise CorruptTableError(f"{len(entries)} Java objects in {size_bytes} bytes share {characters} characters")
    return ObjectDeletes(keys=keys, partitions=partitions, values=values)


def _size(value: Value) -> int:
    wrapper, content = value
    if wrapper is Wrapper.STRING:
        return len(content)
    return sum(map(_size, content)) if wrapper is Wrapper.ARRAY else 0
