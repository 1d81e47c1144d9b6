"""Write delete blocks of versions 1 and 2 as Hudi before 0.14 did: Java objects serialized with Kryo.

Kryo writes an object that occurs again as a reference. With `shared`, equal strings, keys and values in a block are the
same object; without it each value is a separate object. Real blocks are between these two cases.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block
from tests.support.delete_list import Entry
from tests.support.fixture_tables import FixtureTable

ARRAY = "org.apache.hudi.common.util.collection.ArrayComparable"
DELETE_RECORD = "org.apache.hudi.common.model.DeleteRecord"
HOODIE_KEY = "org.apache.hudi.common.model.HoodieKey"
#: Serialized forms of Avro's Utf8 class: with the fields of Avro 1.8 or later, or with its Kryo registration number.
AVRO_8, AVRO_10, HUDI_0_12, HUDI_0_13 = "avro 1.8", "avro 1.10", 10, 27
#: The name of the fixture table of trips, and its last commit.
TRIPS, _LAST = "mor_v6_trips_8i1u", "20250331030645735"
_COMMIT_TIME, _EVENT_TIME = "OverwriteWithLatestAvroPayload", "DefaultHoodieRecordPayload"
#: A key written by Hudi 0.10.1. Hudi 0.12.3 wrote the records: one with a lower ordering value than the stored row, one
#: with a higher ordering value and one without.
_KEY = (
    b"\x01\0[Lorg.apache.hudi.common.model.HoodieKey\xbb\x01\x02\x01\x01org.apache.hudi.common.model.HoodieKe\xf9"
    b"\x01\x01city=sao_paul\xef\x01e3cf430c-889d-4015-bc98-59bdce1e530\xe3"
)
_RECORDS = (
    b"\x01\0[Lorg.apache.hudi.common.model.DeleteRecord\xbb\x01\x04\x01\x01org.apache.hudi.common.model.DeleteRecor\xe4"
    b"\x01\x01\x02org.apache.hudi.common.model.HoodieKe\xf9\x01\x01city=san_francisc\xef"
    b"\x019909a8b1-2d15-4d3d-8ec9-efc48c536a0\xb0\x09\xc4\xab\xa3\x8a\xd5b"
    b"\x01\x01\x01\x01\x02\x01\x05\x011dced545-862b-4ceb-8b43-d2a568f6616\xe2\x09\xba\x8e\xd3\x9a\xd7b"
    b"\x01\x01\x01\x01\x02\x01\x05\x01e96c4396-3fad-413a-a942-4cb36106d72\xb1\x02\0"
)
LATE = "9909a8b1-2d15-4d3d-8ec9-efc48c536a00"
HOLDING = (
    "1dced545-862b-4ceb-8b43-d2a568f6616b",
    "e96c4396-3fad-413a-a942-4cb36106d721",
    "e3cf430c-889d-4015-bc98-59bdce1e530c",
)
_PRIMITIVES = {"Int": 2, "String": 3, "Float": 4, "Boolean": 5, "Long": 9, "Double": 10}
_SIZED = {"Float": struct.Struct(">f"), "Double": struct.Struct(">d"), "Boolean": struct.Struct("?")}


def framed(version: int, payload: bytes) -> bytes:
    """Return the content of a delete block: version, length and payload."""
    return struct.pack(">ii", version, len(payload)) + payload


def write_objects(entries: list[Entry], version: int, *, shared: bool = True, utf8: str | int = HUDI_0_13) -> bytes:
    """Return the content of a delete block of version 1 or 2; `utf8` is the form of values ("Utf8", text)."""
    return framed(version, _Kryo(shared, utf8).block(entries, version))


def trips_with_deletes(trips: FixtureTable, directory: Path, *, event: bool) -> Path:
    """Unpack the table of trips, add deletes of four keys to its last commit and return its path.

    The delete of the key `LATE` has a lower ordering value than its row, so it applies only with commit-time ordering.
    The deletes of `HOLDING` always apply. With `event` the table has event-time ordering. The delete block of version 2
    is appended to an existing log file; the block of version 1 is in a separate log file.
    """
    path = trips.unpack(directory)
    properties = path / ".hoodie" / "hoodie.properties"
    text = properties.read_text()
    assert _COMMIT_TIME in text
    properties.write_text(text.replace(_COMMIT_TIME, _EVENT_TIME) if event else text)
    headers = {BlockHeader.INSTANT_TIME: _LAST}
    (log,) = (path / "city=san_francisco").glob(".*.log.*_*")
    with log.open("ab") as file:
        file.write(encode_block(BlockType.DELETE, headers, framed(2, _RECORDS)))
    (base,) = (path / "city=sao_paulo").glob("*.parquet")
    group, _, instant = base.stem.split("_")
    log = base.with_name(f".{group}_{instant}.log.1_0-26-86")
    log.write_bytes(encode_block(BlockType.DELETE, headers, framed(1, _KEY)))
    return path


@dataclass(slots=True)
class _Kryo:
    shared: bool
    utf8: str | int
    out: bytearray = field(default_factory=bytearray)
    names: list[str] = field(default_factory=list)
    objects: dict[Any, int] = field(default_factory=dict)
    count: int = 0

    def block(self, entries: list[Entry], version: int) -> bytes:
        name = HOODIE_KEY if version == 1 else DELETE_RECORD
        self.clazz(f"[L{name};")
        self.begin(object())
        self.number(len(entries) + 1)
        for key, partition, value in entries:
            self.clazz(name)
            if version == 2 and self.begin(("record", key, partition, repr(value))):
                self.clazz(HOODIE_KEY)
                self.key(key, partition)
                self.value(value)
            elif version == 1:
                self.key(key, partition)
        return bytes(self.out)

    def key(self, key: str, partition: str | None) -> None:
        if self.begin(("key", key, partition)):
            self.text(partition)
            self.text(key)

    def value(self, value: tuple[str, Any] | None) -> None:
        if value is None:
            self.out.append(0)
            return
        name, content = value
        if name in _PRIMITIVES:
            self.out.append(_PRIMITIVES[name])
            if name == "String":
                self.text(content)
            elif name in _SIZED:
                self.out += _SIZED[name].pack(content)
            else:
                self.zigzag(content)
        elif name == "Array":
            self.clazz(ARRAY)
            if self.begin((name, repr(content))):
                self.clazz("[Ljava.lang.Comparable;")
                self.begin(object())
                self.number(len(content) + 1)
                for item in content:
                    self.value(item)
        else:
            {
                "Utf8": self.utf8_text,
                "Decimal": self.decimal,
                "Date": self.local_date,
                "LocalDate": self.local_date,
                "TimestampMicros": self.time,
            }[name](content)

    def utf8_text(self, content: str) -> None:
        data = content.encode()
        if isinstance(self.utf8, int):
            self.number(self.utf8 + 2)
        else:
            self.clazz("org.apache.avro.util.Utf8")
        if not self.begin(("Utf8", content)):
            return
        if isinstance(self.utf8, str):
            self.begin(object())
        self.number(len(data) + 1)
        self.out += data
        if isinstance(self.utf8, str):
            if self.utf8 == AVRO_10:
                self.zigzag(len(data) * 31)
            self.zigzag(len(data))
            self.text(content if len(data) % 2 else None)

    def decimal(self, content: Decimal) -> None:
        sign, digits, exponent = content.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        assert isinstance(exponent, int)
        self.clazz("java.math.BigDecimal")
        if self.begin(("Decimal", str(content))):
            size = (number if number >= 0 else ~number).bit_length() // 8 + 1
            self.number(size + 1)
            self.out += number.to_bytes(size, signed=True)
            self.zigzag(-exponent)

    def local_date(self, days: int) -> None:
        day = date(1970, 1, 1) + timedelta(days)
        self.clazz("java.time.LocalDate")
        if self.begin(("LocalDate", days)):
            self.number(day.year)
            self.out += bytes((day.month, day.day))

    def time(self, micros: int) -> None:
        is_timestamp = micros % 1_000 == 0
        self.clazz("java.sql.Timestamp" if is_timestamp else "java.time.Instant")
        if self.begin(("TimestampMicros", micros)):
            if is_timestamp:
                self.number(micros // 1_000 % (1 << 64), most=9)
            else:
                self.number(micros // 1_000_000 % (1 << 64), most=9)
                self.number(micros % 1_000_000 * 1_000)

    def clazz(self, name: str) -> None:
        is_new = name not in self.names
        if is_new:
            self.names.append(name)
        self.number(1)
        self.number(self.names.index(name))
        if is_new:
            self.characters(name)

    def begin(self, identity: Any) -> bool:
        """Write the header of an object: a reference or a new object; return whether its content must follow."""
        if self.shared and identity in self.objects:
            self.number(self.objects[identity] + 2)
            return False
        self.objects[identity] = self.count
        self.count += 1
        self.number(1)
        return True

    def text(self, value: str | None) -> None:
        if value is None:
            self.number(0)
        elif self.begin(("text", value)):
            self.characters(value)

    def characters(self, value: str) -> None:
        units = len(value.encode("utf-16-le")) // 2
        if value.isascii() and 1 < units < 64:
            self.out += value.encode()
            self.out[-1] |= 0x80
            return
        length = units + 1
        self.out.append(0x80 | length & 0x3F | (0x40 if length >> 6 else 0))
        if length >> 6:
            self.number(length >> 6)
        halves = value.encode("utf-16-be")
        for i in range(0, len(halves), 2):
            self.out += chr(int.from_bytes(halves[i : i + 2])).encode("utf-8", "surrogatepass")

    def zigzag(self, value: int) -> None:
        self.number(value * 2 if value >= 0 else -value * 2 - 1, most=9)

    def number(self, value: int, *, most: int = 5) -> None:
        for _ in range(most - 1):
            if value < 0x80:
                break
            self.out.append(0x80 | value & 0x7F)
            value >>= 7
        self.out.append(value)
