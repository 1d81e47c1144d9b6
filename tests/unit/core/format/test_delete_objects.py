"""Test the decoder of delete blocks of versions 1 and 2 on Java objects of Apache Hudi and on damaged bytes.

All bytes except `DAMAGED` are results of Apache Hudi's SerializationUtils.serialize with Kryo 4.0.2. The tests name the
version of Hudi and, where it matters, of Avro.
"""

from __future__ import annotations

import math
import pickle
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.core.format.log.kryo import KryoReader
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.state.table_config import INITIAL_VERSION, MERGE_ON_READ, TableConfig
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from tests.support.delete_list import Entry
from tests.support.java_deletes import AVRO_8, AVRO_10, HUDI_0_12, HUDI_0_13, framed, write_objects

RECORD, KEY = b"org.apache.hudi.common.model.DeleteRecor\xe4", b"org.apache.hudi.common.model.HoodieKe\xf9"
RECORDS, KEYS = (
    b"\x01\0[Lorg.apache.hudi.common.model.DeleteRecord\xbb",
    b"\x01\0[Lorg.apache.hudi.common.model.HoodieKey\xbb",
)
FIRST = b"\x01\x01" + RECORD + b"\x01\x01\x02" + KEY
#: The bytes of a block with one record, up to its ordering value; equal in Hudi 0.11.1, 0.12.3, 0.13.1 and 1.2.0.
ONE = RECORDS + b"\x01\x02" + FIRST + b"\x01\x01p=\xb1\x01key\xb1"
TWO = RECORDS + b"\x01\x03" + FIRST + b"\x01\x01p=\xb1\x01key\xb1"
#: The start of an array of ordering values, up to the byte with 1 + their number.
ARRAY = b"\x01\x03org.apache.hudi.common.util.collection.ArrayComparabl\xe5\x01\x01\x04[Ljava.lang.Comparable\xbb\x01"
US = pa.timestamp("us")
#: Ordering values that Hudi 0.13.1 serialized.
VALUES: dict[str, tuple[bytes, pa.DataType, Any]] = {
    "Integer": (b"\x02\x09", pa.int32(), -5),
    "smallest Integer": (b"\x02\xff\xff\xff\xff\x0f", pa.int32(), -(2**31)),
    "largest Integer": (b"\x02\xfe\xff\xff\xff\x0f", pa.int32(), 2**31 - 1),
    "Integer of a date": (b"\x02\x09", pa.date32(), date(1969, 12, 27)),
    "Long": (b"\x09\xac\x02", pa.int64(), 150),
    "smallest Long": (b"\x09" + b"\xff" * 9, pa.int64(), -(2**63)),
    "largest Long": (b"\x09\xfe" + b"\xff" * 8, pa.int64(), 2**63 - 1),
    "Long of a timestamp": (b"\x09\xac\x02", US, datetime(1970, 1, 1, 0, 0, 0, 150)),
    "Float": (b"\x04\x3f\xc0\0\0", pa.float32(), 1.5),
    "Double": (b"\x0a\xc0\x04\0\0\0\0\0\0", pa.float64(), -2.5),
    "true": (b"\x05\x01", pa.bool_(), True),
    "false": (b"\x05\0", pa.bool_(), False),
    "String": (b"\x03\x01tex\xf4", pa.string(), "text"),
    "String of one letter": (b"\x03\x01\x82t", pa.string(), "t"),
    "empty String": (b"\x03\x01\x81", pa.string(), ""),
    "wide String": (b"\x03\x01\x85h\xc3\xa9\xed\xa0\xbd\xed\xb8\x80", pa.string(), "h\u00e9\U0001f600"),
    "BigDecimal": (b"\x01\x03java.math.BigDecima\xec\x01\x03\x30\x39\x06", pa.decimal128(9, 3), Decimal("12.345")),
    "BigDecimal of no digits": (b"\x01\x03java.math.BigDecima\xec\x01\x02\0\0", pa.decimal128(9, 3), Decimal("0.000")),
    "BigDecimal of thousands": (
        b"\x01\x03java.math.BigDecima\xec\x01\x02\xff\x05",
        pa.decimal128(9, 0),
        Decimal(-1000),
    ),
    "wide BigDecimal": (
        bytes.fromhex("01036a6176612e6d6174682e426967446563696d61ec0111b4c4b357a5793b85f675ddc00000000106"),
        pa.decimal128(38, 3),
        Decimal("-99999999999999999999999999999999999.999"),
    ),
    "Timestamp": (
        b"\x01\x03java.sql.Timestam\xf0\x01\xfb\xe8\xc7\x92\xcc\x31",
        US,
        datetime(2024, 1, 1, 0, 0, 0, 123_000),
    ),
    "Timestamp before 1970": (
        b"\x01\x03java.sql.Timestam\xf0\x01" + b"\xff" * 9,
        pa.timestamp("ms"),
        datetime(1969, 12, 31, 23, 59, 59, 999_000),
    ),
    "sql.Date": (b"\x01\x03java.sql.Dat\xe5\x01\x80\xe8\xc7\x92\xcc\x31", pa.date32(), date(2024, 1, 1)),
    "sql.Date before 1970": (
        b"\x01\x03java.sql.Dat\xe5\x01\x80\xc8\xe6\xd6\xff\xff\xff\xff\xff",
        pa.date32(),
        date(1969, 12, 31),
    ),
    "LocalDate": (b"\x01\x03java.time.LocalDat\xe5\x01\xe8\x0f\x01\x05", pa.date32(), date(2024, 1, 5)),
    "Instant": (
        b"\x01\x03java.time.Instan\xf4\x01\x80\x81\xc8\xac\x06\x88\x27",
        US,
        datetime(2024, 1, 1, 0, 0, 0, 5),
    ),
    "Instant before 1970": (
        bytes.fromhex("01036a6176612e74696d652e496e7374616ef401feffffffffffffffff988cebdc03"),
        US,
        datetime(1969, 12, 31, 23, 59, 58, 999_999),
    ),
    "Spark UTF8String": (
        b"\x01\x03org.apache.spark.unsafe.types.UTF8Strin\xe7\x01\0\0\0\x07spark\xc3\xa9",
        pa.string(),
        "spark\u00e9",
    ),
    "Utf8 of Hudi 0.13.1": (b"\x1d\x01\x05utf8", pa.string(), "utf8"),
    "Utf8 of Hudi 0.12.3": (b"\x0c\x01\x05utf8", pa.string(), "utf8"),
    "Utf8 of Hudi 0.11.1 with Avro 1.8.2": (
        b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\x08\x01utf\xb8",
        pa.string(),
        "utf8",
    ),
    "Utf8 of Hudi 0.11.1 with Avro 1.10.2": (
        b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\0\x08\x01utf\xb8",
        pa.string(),
        "utf8",
    ),
    "empty Utf8 of Hudi 0.11.1": (
        b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x01\0\0\x01\x81",
        pa.string(),
        "",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_ordering_values_of_each_java_class_are_read(name: str) -> None:
    data, kind, value = VALUES[name]
    read = decode_any_deletes(framed(2, ONE + data), [kind])
    assert (read.keys.to_pylist(), read.partitions.to_pylist()) == (["key1"], ["p=1"])
    assert read.ordering == (pa.array([value], kind),)
    assert read.default.tolist() == [False]


def test_nan_is_an_ordering_value() -> None:
    (ordering,) = decode_any_deletes(framed(2, ONE + b"\x04\x7f\xc0\0\0"), [pa.float32()]).ordering
    assert math.isnan(ordering[0].as_py())


@pytest.mark.parametrize(("data", "kind"), [(b"\x02\0", pa.int32()), (b"\0", pa.int64()), (b"\x09\x0e", pa.string())])
def test_null_and_values_of_another_class_are_treated_as_no_ordering_value(data: bytes, kind: pa.DataType) -> None:
    read = decode_any_deletes(framed(2, ONE + data), [kind])
    assert read.default.tolist() == [True]
    assert read.ordering == (pa.nulls(1, kind),)
    assert decode_any_deletes(framed(2, ONE + data), [pa.int64(), kind]).default.tolist() == [True]
    assert decode_any_deletes(framed(2, ONE + data), []).default.tolist() == [True]


def test_several_ordering_columns_are_read_from_an_array() -> None:
    """The bytes are of Hudi 1.2.0; releases that write version 2 do not support several ordering columns."""
    values = b"\x02\x02\x03\x01\x82x\x09\x0a\x01\x05java.time.LocalDat\xe5\x01\xe8\x0f\x01\x05\0"
    data = framed(2, ONE + ARRAY + b"\x06" + values)
    kinds = [pa.int32(), pa.string(), pa.int64(), pa.date32()]
    assert decode_any_deletes(data, [*kinds, pa.int32()]).default.tolist() == [True]
    whole = framed(2, ONE + ARRAY + b"\x05" + values[:-1])
    read = decode_any_deletes(whole, kinds)
    assert [column.to_pylist() for column in read.ordering] == [[1], ["x"], [5], [date(2024, 1, 5)]]
    assert decode_any_deletes(whole, kinds[::-1]).default.tolist() == [True]
    assert decode_any_deletes(whole, kinds[:1]).default.tolist() == [True]


def test_version_1_deletes_have_no_ordering_value() -> None:
    """The bytes are of Hudi 0.10.1; the first and the last key share the object of their partition."""
    data = (
        KEYS
        + b"\x01\x04\x01\x01"
        + KEY
        + b"\x01\x01p=\xb1\x01key\xb1\x01\x01\x01\x01p=\xb1\x01\x82k\x01\x01\x01\x04\x01\x81"
    )
    read = decode_any_deletes(framed(1, data), [pa.int64(), pa.list_(pa.int8())])
    assert (read.keys.to_pylist(), read.partitions.to_pylist()) == (["key1", "k", ""], ["p=1"] * 3)
    assert read.default.tolist() == [True] * 3
    assert [column.null_count for column in read.ordering] == [3, 3]


def test_references_to_earlier_objects_are_resolved() -> None:
    """The bytes are of Hudi 0.12.3; records share a decimal and a partition, and one record occurs twice."""
    data = (
        RECORDS + b"\x01\x05" + FIRST + b"\x01\x01p=\xb1\x01a\xb1\x01\x03java.math.BigDecima\xec\x01\x02\x0f\x02"
        b"\x01\x01\x01\x01\x02\x01\x05\x01b\xb1\x01\x03\x07\x01\x01\x03\x01\x01\x01\x01\x02\x01\0\x06\x09\x02"
    )
    read = decode_any_deletes(framed(2, data), [pa.decimal128(5, 1)])
    assert read.keys.to_pylist() == ["a1", "b1", "a1", "a1"]
    assert read.partitions.to_pylist() == ["p=1", "p=1", "p=1", None]
    assert read.ordering[0].to_pylist() == [Decimal("1.5")] * 3 + [None]
    assert read.default.tolist() == [False] * 3 + [True]


@pytest.mark.parametrize(
    "text",
    [
        b"\x1d\x01\x05utf8\x01\x01\x01\x01\x02\x01\x05\x01key\xb2\x1d\x07",
        b"\x0c\x01\x05utf8\x01\x01\x01\x01\x02\x01\x05\x01key\xb2\x0c\x07",
        b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\xe2\xbd\xb7\x03\x08\x01utf\xb8"
        b"\x01\x01\x01\x01\x02\x01\x05\x01key\xb2\x01\x03\x07",
        b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\x08\x01utf\xb8"
        b"\x01\x01\x01\x01\x02\x01\x05\x01key\xb2\x01\x03\x07",
    ],
    ids=["0.13.1", "0.12.3", "0.11.1, Avro 1.10.2", "0.11.1, Avro 1.8.2"],
)
def test_references_to_earlier_utf8_objects_are_resolved(text: bytes) -> None:
    """The bytes are of the named release; the text has a cached hash and a cached string."""
    read = decode_any_deletes(framed(2, TWO + text), [pa.string()])
    assert read.keys.to_pylist() == ["key1", "key2"]
    assert read.ordering[0].to_pylist() == ["utf8", "utf8"]


def test_the_relocated_utf8_of_hudis_flink_bundle_is_read() -> None:
    """The bytes are of Hudi 0.11.1 with the class name of the bundle."""
    name = b"\x01\x03org.apache.hudi.org.apache.avro.util.Utf\xb8"
    read = decode_any_deletes(framed(2, ONE + name + b"\x01\x01\x05utf8\0\x08\x01utf\xb8"), [pa.string()])
    assert read.ordering[0].to_pylist() == ["utf8"]


def test_long_texts_with_a_length_are_read() -> None:
    """The bytes are of Hudi 0.11.1; partitions have 63 letters and a zero character, keys 64 and 200 letters."""
    data = (
        RECORDS + b"\x01\x03" + FIRST + b"\x01\x01" + b"x" * 62 + b"\xf8\x01\xc1\x01" + b"x" * 64 + b"\x02\x02"
        b"\x01\x01\x01\x01\x02\x01\x01p\0\xf1\x01\xc9\x03" + b"y" * 200 + b"\x02\x04"
    )
    read = decode_any_deletes(framed(2, data), [pa.int32()])
    assert read.keys.to_pylist() == ["x" * 64, "y" * 200]
    assert read.partitions.to_pylist() == ["x" * 63, "p\0q"]
    assert read.ordering[0].to_pylist() == [1, 2]


def test_an_empty_array_has_no_deletes() -> None:
    """The bytes are equal in all releases since 0.11.1."""
    assert len(decode_any_deletes(framed(2, RECORDS + b"\x01\x01"), [pa.int64()]).keys) == 0


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x01\x03java.math.BigIntege\xf2\x01\x02\x0a", "'java.math.BigInteger' at byte 142"),
        (b"\x01\x03java.util.Dat\xe5\x01\x05", "'java.util.Date' at byte 142"),
        (b"\x01\x03java.time.LocalTim\xe5\x01\x01\x02\xfc", "'java.time.LocalTime' at byte 142"),
        (b"\x08\0\x03", "'short' at byte 142"),
        (b"\x07\0\x63", "'char' at byte 142"),
        (b"\x01\x03org.apache.spark.sql.types.Decima\xec\x01\0\x28\0\x0a", "'org.apache.spark.sql.types.Decimal'"),
        (b"\x2e\x01\x05utf8", "unknown class, registered as 44, at byte 142"),
        (b"\x01\x03java.sql.Dat\xe5\x01\x80\x8a\xdd\xa3\xcc\x31", "at byte 158 that is not midnight UTC"),
    ],
)
def test_unknown_classes_are_refused_with_their_byte_position(data: bytes, name: str) -> None:
    """The bytes are of Hudi 0.13.1; those of the class with the registered number 44 are of Hudi 1.2.0."""
    with pytest.raises(UnsupportedError, match=name) as raised:
        decode_any_deletes(framed(2, ONE + data), [pa.string()])
    assert raised.value.facts["position"] in (142, 158)


DAMAGED: dict[str, tuple[int, bytes, str]] = {
    "nothing": (2, b"", "inside a number, at byte 0"),
    "null": (2, b"\0", "has the object 'null'; expected .*DeleteRecord"),
    "another version": (1, ONE + b"\x02\x02", "version 1 has the object '.*DeleteRecord;'; expected .*HoodieKey"),
    "a null class of entries": (2, RECORDS + b"\0", "the array of entries is null"),
    "a null array of entries": (2, RECORDS + b"\x01\0", "the array of entries is null"),
    "a null entry": (2, RECORDS + b"\x01\x02\0", "an entry is null"),
    "one entry too few": (2, RECORDS + b"\x01\x04" + (ONE + b"\x02\x02")[len(RECORDS) + 2 :], "inside a number"),
    "one entry too many": (2, ONE + b"\x02\x02\0", "other bytes follow the 1 entries, at byte 144"),
    "a number of six bytes": (2, RECORDS + b"\x01\xff\xff\xff\xff\xff", "not a valid length"),
    "an unknown object": (2, RECORDS + b"\x01\x02\x01\x01" + RECORD + b"\x09", "object 7 does not exist"),
    "an object that contains itself": (
        2,
        RECORDS + b"\x01\x02\x01\x01" + RECORD + b"\x02",
        "object 0 is not a '.*DeleteRecord'",
    ),
    "a reference to a key as text": (
        2,
        RECORDS + b"\x01\x02" + FIRST + b"\x01\x04",
        "object 2 is not a 'java.lang.String'",
    ),
    "a reference to a key as ordering value": (2, ONE + b"\x03\x04", "object 2 is not a 'java.lang.String'"),
    "a reference to a Java string as Utf8": (2, ONE + b"\x1d\x06", "object 4 is not a 'Utf8'"),
    "a null key": (2, RECORDS + b"\x01\x02" + FIRST + b"\x01\x01p=\xb1\0", "a key is null"),
    "a record without key": (2, RECORDS + b"\x01\x02\x01\x01" + RECORD + b"\x01\0", "no key"),
    "a class without name": (2, b"\x01\x05", "class 5 has no name"),
    "an unpaired surrogate": (2, ONE + b"\x03\x01\x82\xed\xa0\xbd", "not valid UTF-16"),
    "a text without end": (2, ONE + b"\x03\x01te", "has no end"),
    "a wide text without end": (2, ONE + b"\x03\x01\x84\xc3\xa9", "has no end"),
    "invalid UTF-8": (2, ONE + b"\x1d\x01\x02\xff", "not UTF-8"),
    "an invalid boolean": (2, ONE + b"\x05\x02", "2 is not a boolean"),
    "an invalid date": (2, ONE + b"\x01\x03java.time.LocalDat\xe5\x01\xe8\x0f\x0d\x05", "2024-13-5 is not a date"),
    "a decimal of too many bytes": (
        2,
        ONE + b"\x01\x03java.math.BigDecima\xec\x01\x22" + b"\x7f" * 33 + b"\0",
        "has 33 bytes",
    ),
    "a decimal of too many fractional digits": (
        2,
        ONE + b"\x01\x03java.math.BigDecima\xec\x01\x02\x01\xfe\xff\xff\xff\x0f",
        "fractional digits",
    ),
    "a null value": (2, ONE + b"\x03\0", "java.lang.String is null"),
    "a Utf8 length above its bytes": (
        2,
        ONE + b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\0\x0a\0",
        "declares 5 bytes",
    ),
    "a negative Utf8 length": (
        2,
        ONE + b"\x01\x03org.apache.spark.unsafe.types.UTF8Strin\xe7\x01\xff\xff\xff\xf0",
        "has -16 bytes",
    ),
    "too many nanoseconds": (
        2,
        ONE + b"\x01\x03java.time.Instan\xf4\x01\0\x80\x94\xeb\xdc\x03",
        "1000000000 nanoseconds",
    ),
    "too many ordering values": (2, ONE + ARRAY + b"\x42" + b"\0" * 65, "has 65 ordering values"),
    "a null array of values": (2, ONE + ARRAY + b"\0", "has -1 ordering values"),
    "a null array of ordering values": (2, ONE + ARRAY[:-1] + b"\0", "an array of ordering values is null"),
    "a Utf8 with another string": (
        2,
        ONE + b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x05utf8\0\x08\x01utf\xb9",
        "bytes and its string differ",
    ),
}


def test_nested_arrays_are_refused_and_empty_arrays_have_no_ordering_value() -> None:
    with pytest.raises(UnsupportedError, match="ArrayComparable' at byte "):
        decode_any_deletes(framed(2, ONE + ARRAY + b"\x02\x01\x03\x01\x01\x04\x01\x01"), [pa.int32()])
    assert decode_any_deletes(framed(2, ONE + ARRAY + b"\x01"), []).default.tolist() == [True]


def test_an_object_that_contains_itself_is_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="object 0 is not a 'a'"):
        KryoReader(b"\x01\x02", {}).shared("a", lambda reader: reader.shared("a", KryoReader.text))


def test_texts_that_are_ambiguous_between_avro_versions_are_refused() -> None:
    """The bytes are valid for two versions of Avro, with different values.

    With Avro 1.10 the text of the fifth record has nine characters, and the sixth record is a reference to the first.
    With Avro 1.8 that text is empty, like its string (object 16), and the sixth record starts before the characters.
    """
    nine = b"\x01\x01\x01\x02\x01\0\x06\x04?"
    again = b"\x01\x01\x01\x01\x02\x01\x01\x81\x01\x81"
    data = RECORDS + b"\x01\x07" + FIRST + b"\x01\x01\x81\x01\x81\0" + (again + b"\0") * 3 + again
    data += b"\x01\x03org.apache.avro.util.Utf\xb8\x01\x01\x0a" + nine + b"\0\x12\x01" + nine[:-1] + b"\xbf\x01\x01\x03"
    with pytest.raises(UnsupportedError, match=r"valid both for Avro 1\.8 and for later versions"):
        decode_any_deletes(framed(2, data), [pa.string()])


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_objects_are_corrupt(name: str) -> None:
    version, data, problem = DAMAGED[name]
    with pytest.raises(CorruptTableError, match=problem):
        decode_any_deletes(framed(version, data), [pa.int64()])


def test_a_block_with_a_wrong_length_is_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="of version 2 has"):
        decode_any_deletes(framed(2, ONE + b"\x02\x02")[:-1], [])


def test_values_outside_the_range_of_their_type_are_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="not a valid int16"):
        decode_any_deletes(framed(2, ONE + b"\x02\xfe\xff\xff\xff\x0f"), [pa.int16()])
    with pytest.raises(CorruptTableError, match="not a valid decimal128"):
        decode_any_deletes(framed(2, ONE + VALUES["BigDecimal"][0]), [pa.decimal128(9, 2)])
    with pytest.raises(CorruptTableError, match="not a valid timestamp"):
        decode_any_deletes(framed(2, ONE + b"\x01\x03java.sql.Timestam\xf0\x01" + b"\xff" * 8 + b"\x7f"), [US])


def test_unsupported_ordering_types_are_refused_if_a_delete_has_a_value() -> None:
    with pytest.raises(UnsupportedError, match="cannot be the ordering column of deletes"):
        decode_any_deletes(framed(2, ONE + b"\x02\x02"), [pa.list_(pa.int8())])
    for kind in (pa.list_(pa.int8()), pa.timestamp("ns")):
        assert decode_any_deletes(framed(2, ONE + b"\x02\0"), [kind]).default.tolist() == [True]


def test_shared_texts_above_the_bound_are_refused() -> None:
    entries: list[Entry] = [(str(i), "p" * 100_000, ("Int", 1)) for i in range(3_000)]
    with pytest.raises(CorruptTableError, match="share 3000"):
        decode_any_deletes(write_objects(entries, 2), [])


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("smallest Integer", "Int"),
        ("largest Long", "Long"),
        ("Float", "Float"),
        ("Double", "Double"),
        ("true", "Boolean"),
        ("wide String", "String"),
        ("empty String", "String"),
        ("String of one letter", "String"),
        ("wide BigDecimal", "Decimal"),
    ],
)
def test_the_test_encoder_writes_values_like_hudi(name: str, form: str) -> None:
    data, _, value = VALUES[name]
    assert write_objects([("key1", "p=1", (form, value))], 2) == framed(2, ONE + data)


def test_the_test_encoder_writes_times_and_utf8_like_hudi() -> None:
    def written(form: str, value: Any, utf8: int = HUDI_0_13) -> bytes:
        return write_objects([("key1", "p=1", (form, value))], 2, utf8=utf8)[8:]

    def stored(name: str) -> bytes:
        return ONE + VALUES[name][0]

    assert written("LocalDate", 19_727) == stored("LocalDate")
    assert written("TimestampMicros", 1_704_067_200_123_000) == stored("Timestamp")
    assert written("TimestampMicros", -1_000) == stored("Timestamp before 1970")
    assert written("TimestampMicros", 1_704_067_200_000_005) == stored("Instant")
    assert written("TimestampMicros", -1_000_001) == stored("Instant before 1970")
    assert written("Utf8", "utf8", HUDI_0_12) == stored("Utf8 of Hudi 0.12.3")
    again: list[Entry] = [("key1", "p=1", ("Utf8", "utf8")), ("key2", "p=1", ("Utf8", "utf8"))]
    assert write_objects(again, 2)[8:] == TWO + b"\x1d\x01\x05utf8\x01\x01\x01\x01\x02\x01\x05\x01key\xb2\x1d\x07"


@pytest.mark.parametrize("utf8", [AVRO_8, AVRO_10])
def test_the_test_encoder_writes_utf8_of_each_avro_version(utf8: str) -> None:
    entries: list[Entry] = [("k", None, ("Utf8", "abc")), ("l", "p", ("Utf8", "ab")), ("m", "p", ("Utf8", "abc"))]
    read = decode_any_deletes(write_objects(entries, 2, utf8=utf8), [pa.string()])
    assert read.ordering[0].to_pylist() == ["abc", "ab", "abc"]


def test_only_layouts_of_older_log_files_decode_java_objects() -> None:
    block = framed(2, ONE + b"\x02\x02")
    assert table_layout(6).decode_deletes(block, [pa.int32()]).keys.to_pylist() == ["key1"]
    for version in (8, 9):
        with pytest.raises(
            UnsupportedError, match="version 2 has Java objects, which only log files of table version 6"
        ):
            table_layout(version).decode_deletes(block, [pa.int32()])


@pytest.mark.parametrize(("initial", "reads"), [("6", True), ("9", False)])
def test_upgraded_table_reads_java_objects_in_its_log_files(initial: str, reads: bool) -> None:
    keys = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",))
    raw = {INITIAL_VERSION: initial}
    config = TableConfig(name="t", version=9, table_type=MERGE_ON_READ, keys=keys, raw=raw)
    decode = pickle.loads(pickle.dumps(config.decode_deletes))
    block = framed(2, ONE + b"\x02\x02")
    if reads:
        assert len(decode(block, [pa.int32()]).keys) == 1
    else:
        with pytest.raises(UnsupportedError):
            decode(block, [pa.int32()])
