"""Metadata records of each kind are restored after encoding; fastavro reads them; those of Hudi are decoded."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.metadata import locations, records, schema, statistics
from lakehouse.core.format.metadata.bounds import decimal_bytes, decimals_of_bytes, has_statistics
from lakehouse.errors import CorruptTableError
from tests.support.shared import fixtures

NAMES = st.text("abé😀_.-", min_size=1, max_size=150)
FILES = st.dictionaries(
    st.text("pq=/é", min_size=1, max_size=6),
    st.dictionaries(NAMES, st.tuples(st.integers(-1, 2**62), st.booleans()), max_size=40),
    max_size=6,
)
UUID = "8b41bd0b-7d8e-4cb5-a9d2-0f0d9f6a1c11"


def stored(entries: pa.Table, text: str = schema.SCHEMA) -> dict[str, dict[str, Any]]:
    """Return the records of entries, read with fastavro."""
    parsed = fastavro.parse_schema(json.loads(text))
    found: dict[str, Any] = {}
    for key, value in zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True):
        found[key.decode()] = fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
    return found


def fixture_entries(name: str) -> tuple[pa.Table, str]:
    file = read_hfile((fixtures("hudi_metadata") / "hfile" / name).read_bytes())
    assert file.schema is not None
    return file.entries(), file.schema


def entry(out: io.BytesIO) -> pa.Table:
    return pa.table([[b"k"], [out.getvalue()]], names=["key", "value"])


def file_rows(files: dict[str, dict[str, tuple[int, bool]]]) -> pa.Table:
    rows: list[tuple[Any, ...]] = [
        (key, name, size, deleted) for key, held in files.items() for name, (size, deleted) in held.items()
    ]
    rows += [(key, None, 0, True) for key, held in files.items() if not held]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 4
    arrays = [pa.array(column, field.type) for column, field in zip(columns, records.FILE_ROWS, strict=True)]
    return pa.table(arrays, schema=records.FILE_ROWS)


def test_written_schemas_equal_the_one_of_hudi_without_docs() -> None:
    expected = json.loads((fixtures("hudi_metadata") / "metadata_record.avsc").read_text())
    assert json.loads(schema.SCHEMA) == expected
    assert json.loads(schema.CURRENT.commits) == expected | {"fields": expected["fields"][5:]}


@given(FILES)
def test_file_records_are_restored_and_read_by_fastavro(files: dict[str, dict[str, tuple[int, bool]]]) -> None:
    rows = file_rows(files)
    order = np.random.default_rng(1).permutation(rows.num_rows)
    entries = records.encode_files(rows.take(pa.array(order)))
    assert entries["key"].to_pylist() == sorted(key.encode() for key in files)
    found = records.decode_files(entries, schema.SCHEMA)
    by_name = [("key", "ascending"), ("name", "ascending")]
    assert found.sort_by(by_name).equals(rows.sort_by(by_name))
    for key, record in stored(entries).items():
        assert (record["key"], record["type"]) == ("", 2)
        assert record["filesystemMetadata"] == {
            name: {"size": size, "isDeleted": deleted} for name, (size, deleted) in files[key].items()
        }


def test_list_of_partitions_has_its_own_record_type() -> None:
    entries = records.encode_files(file_rows({"__all_partitions__": {}, "a=1": {"x.parquet": (1, False)}}))
    assert {key: record["type"] for key, record in stored(entries).items()} == {"__all_partitions__": 1, "a=1": 2}


def test_records_of_many_lists_of_unequal_length_are_decoded() -> None:
    files = {
        f"p{number:03}": {f"{number}_{at}" + "x" * (at % 140): (at * 2**20, False) for at in range(number % 37)}
        for number in range(200)
    }
    files["long"] = {f"file-{at:05}-{'y' * (at % 90)}.parquet": (at, at % 2 == 0) for at in range(3000)}
    rows = file_rows(files)
    by_name = [("key", "ascending"), ("name", "ascending")]
    assert (
        records.decode_files(records.encode_files(rows), schema.SCHEMA).sort_by(by_name).equals(rows.sort_by(by_name))
    )


def test_bloom_and_secondary_records_are_restored_and_read_by_fastavro() -> None:
    rows = pa.table(
        [["b", "a"], ["SIMPLE", "DYNAMIC_V0"], ["20260101000000000", "2"], [b"\0x", b""]], schema=records.BLOOM_ROWS
    )
    entries = records.encode_blooms(rows)
    assert records.decode_blooms(entries, schema.SCHEMA).equals(rows.sort_by("key").combine_chunks())
    assert stored(entries)["b"]["BloomFilterMetadata"] == {
        "type": "SIMPLE", "timestamp": "20260101000000000", "bloomFilter": b"\0x", "isDeleted": False,
    }  # fmt: skip
    names = pa.table([["é$k", "a$k", "\0$k"]], schema=records.SECONDARY_ROWS)
    entries = records.encode_secondary(names)
    assert records.decode_secondary(entries, schema.SCHEMA)["key"].to_pylist() == ["\0$k", "a$k", "é$k"]
    assert {record["type"] for record in stored(entries).values()} == {7}


@given(
    st.dictionaries(
        st.text("k1é", max_size=5),
        st.tuples(
            st.sampled_from(["", "a=1"]),
            st.one_of(
                st.uuids().map(str),
                st.tuples(st.uuids().map(str), st.integers(0, 10**9 - 1)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
                st.sampled_from(["bucket-17", f"{UUID}-00", f"{UUID.upper()}-0", "", f"{UUID}-12345678901"]),
            ),
            st.integers(-(2**62), 2**62),
        ),
    )
)
def test_record_locations_are_restored_and_read_by_fastavro(held: dict[str, tuple[str, str, int]]) -> None:
    columns = [list(held), *([value[at] for value in held.values()] for at in range(3))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, locations.LOCATION_ROWS, strict=True)]
    rows = pa.table(arrays, schema=locations.LOCATION_ROWS)
    entries = locations.encode_locations(rows)
    found = locations.decode_locations(entries, schema.SCHEMA)
    assert {row["key"]: (row["partition"], row["file_id"], row["instant_ms"]) for row in found.to_pylist()} == held
    for key, record in stored(entries).items():
        info = record["recordIndexMetadata"]
        partition, file_id, instant = held[key]
        assert (info["partitionName"], info["instantTime"], info["position"]) == (partition, instant, None)
        assert (info["fileIdEncoding"] == 1) == ((info["fileId"] == file_id and file_id != "") or file_id == "")


TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int16(), [-3, 7, None]),
    (pa.int32(), [-(2**31), 2**31 - 1, None]),
    (pa.int64(), [-(2**63), 2**63 - 1, None]),
    (pa.float32(), [1.5, -2.25, None]),
    (pa.float64(), [0.1, -1e300, None]),
    (pa.string(), ["", "näme 😀", None]),
    (pa.date32(), [date(1969, 12, 31), date(2024, 3, 7), None]),
    (pa.timestamp("us", "UTC"), [datetime.fromisoformat("1960-01-01T00:00:00.000001+00:00"), None]),
    (pa.timestamp("ms"), [datetime(2024, 1, 1, 1, 1, 1, 5000), None]),
    (pa.timestamp("ns"), [datetime(2024, 1, 1), None]),
    (pa.time64("us"), [time(1, 2, 3, 4), None]),
    (pa.time32("ms"), [time(1, 2, 3, 4000), None]),
    (pa.decimal128(10, 2), [Decimal("-1.28"), Decimal("1.28"), Decimal("7.00"), None]),
    (pa.decimal128(38, 10), [Decimal(10) ** 27, -(Decimal(10) ** 27), None]),
    (pa.binary(), [b"", b"\xff\0", None]),
]


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_bounds_of_each_type_are_restored(kind: pa.DataType, values: list[Any], version: str) -> None:
    if not has_statistics(kind, version):
        assert version == "V1" and kind in (pa.binary(), pa.decimal128(38, 10))
        return
    bounds, count = pa.array(values, kind), len(values)
    names = pa.array([f"f{at}" for at in range(count)])
    rows = pa.table(
        {
            "name": names, "min": bounds, "max": bounds, "value_count": [9] * count, "null_count": [9] * count,
            "size_bytes": [5] * count, "uncompressed_bytes": [6] * count, "tight": [False] * count,
        }
    )  # fmt: skip
    made = statistics.statistics_of(rows, "a.b", names, version=version)
    entries = statistics.encode_statistics(made)
    found = statistics.decode_statistics(entries, schema.SCHEMA)
    assert found.equals(made.combine_chunks())
    typed = statistics.typed_statistics(found, kind)
    assert typed["min"].equals(pa.chunked_array([bounds])) and typed["max"].equals(pa.chunked_array([bounds]))
    is_text = kind in (pa.string(), pa.binary())
    assert typed["known"].to_pylist() == [value is not None or not is_text for value in values]
    assert {record["ColumnStatsMetadata"]["columnName"] for record in stored(entries).values()} == {"a.b"}


def test_bounds_of_a_column_whose_type_became_wider_are_converted() -> None:
    names = pa.array(["f"])
    rows = pa.table(
        {"name": names, "min": pa.array([1], pa.int32()), "max": pa.array([7], pa.int32()), "value_count": [2],
         "null_count": [0], "size_bytes": [0], "uncompressed_bytes": [0], "tight": [True]}
    )  # fmt: skip
    made = statistics.statistics_of(rows, "c", names, version="V2", partition_stats=True)
    for kind, expected in ((pa.int64(), 1), (pa.float64(), 1.0), (pa.float32(), 1.0)):
        (row,) = statistics.typed_statistics(made, kind).to_pylist()
        assert (row["min"], row["known"]) == (expected, True)
    (row,) = statistics.typed_statistics(made, pa.string()).to_pylist()
    # The order of texts is not that of numbers, so the bounds contain the texts of all numbers of this sign.
    assert (row["min"], row["max"], row["known"]) == ("0", "9" * 19, True)
    for kind in (pa.timestamp("us"), pa.decimal128(10, 2), pa.list_(pa.int32())):
        (row,) = statistics.typed_statistics(made, kind).to_pylist()
        assert (row["min"], row["known"]) == (None, False)


@pytest.mark.parametrize("pair", [(0.0, 0.0), (1.0, float("nan")), (float("nan"), float("nan"))])
def test_bounds_of_floats_that_hudi_computes_wrongly_are_not_known(pair: tuple[float, float]) -> None:
    names = pa.array(["f"])
    rows = pa.table(
        {"name": names, "min": [pair[0]], "max": [pair[1]], "value_count": [2], "null_count": [0],
         "size_bytes": [0], "uncompressed_bytes": [0], "tight": [False]}
    )  # fmt: skip
    (row,) = statistics.typed_statistics(
        statistics.statistics_of(rows, "c", names, version="V2"), pa.float64()
    ).to_pylist()
    assert not row["known"]


@given(st.lists(st.none() | st.integers(-(10**37), 10**37) | st.sampled_from([-129, -128, 127, 128, 0, -1])))
def test_decimal_bytes_equal_those_of_python(numbers: list[int | None]) -> None:
    values = pa.array([None if n is None else Decimal(n) for n in numbers], pa.decimal128(38, 0))
    data = decimal_bytes(values)
    for number, found in zip(numbers, data.to_pylist(), strict=True):
        if number is None:
            assert found is None
        else:
            shortest = (number if number >= 0 else ~number).bit_length() // 8 + 1
            assert found == number.to_bytes(shortest, "big", signed=True)
    assert decimals_of_bytes(data, 0).equals(values)


@pytest.mark.parametrize(
    ("name", "decode"),
    [
        ("base_column_stats_0000.hfile", statistics.decode_statistics),
        ("base_partition_stats_0000.hfile", statistics.decode_statistics),
        ("base_expr_index_idx_hour_0000.hfile", statistics.decode_statistics),
        ("base_record_index_0000.hfile", locations.decode_locations),
        ("base_files_0000.hfile", records.decode_files),
        ("base_secondary_index_name_idx_0000.hfile", records.decode_secondary),
    ],
)
def test_records_of_hudi_are_decoded(name: str, decode: Any) -> None:
    entries, text = fixture_entries(name)
    expected = stored(entries, text)
    rows = decode(entries, text).to_pylist()
    assert rows
    if "file_id" in rows[0]:
        found = [(row["key"], row["partition"], row["instant_ms"]) for row in rows]
        infos = ((key, record["recordIndexMetadata"]) for key, record in expected.items())
        assert found == [(key, info["partitionName"], info["instantTime"]) for key, info in infos]
    elif "size_bytes" in rows[0] and "column" not in rows[0]:
        files = {key: record["filesystemMetadata"] for key, record in expected.items()}
        assert {(row["key"], row["name"], row["size_bytes"], row["deleted"]) for row in rows} == {
            (key, name, info["size"], info["isDeleted"]) for key, held in files.items() for name, info in held.items()
        }
    elif "column" in rows[0]:
        for row, (key, record) in zip(rows, expected.items(), strict=True):
            info = record["ColumnStatsMetadata"]
            assert (row["key"], row["name"], row["column"]) == (key, info["fileName"], info["columnName"])
            assert (row["value_count"], row["null_count"], row["size_bytes"], row["uncompressed_bytes"]) == (
                info["valueCount"], info["nullCount"], info["totalSize"], info["totalUncompressedSize"],
            )  # fmt: skip
            assert (row["type"], row["tight"], row["deleted"]) == (record["type"], info["isTightBound"], False)
            assert row["type_ordinal"] == info["valueType"]["typeOrdinal"]
            for bound in ("min", "max"):
                value = (info[f"{bound}Value"] or {}).get("value")
                held = [row[f"{bound}_{part}"] for part in ("number", "real", "data")]
                value = value.encode() if isinstance(value, str) else value
                assert [part for part in held if part is not None] == ([] if value is None else [value])
    else:
        assert [row["key"] for row in rows] == list(expected)


def test_statistics_that_are_decoded_in_batches_equal_those_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, text = fixture_entries("base_column_stats_0000.hfile")
    at_once = statistics.decode_statistics(entries, text)
    assert at_once.num_rows > 3
    monkeypatch.setattr(statistics, "_BATCH_ROWS", 3)
    batches = statistics.decode_statistics(entries, text)
    assert batches.equals(at_once)
    assert batches.column("key").num_chunks == -(-at_once.num_rows // 3)
    for kind in (pa.int64(), pa.string(), pa.float64()):
        assert statistics.typed_statistics(batches, kind).equals(statistics.typed_statistics(at_once, kind))


@pytest.mark.parametrize(
    ("name", "decode", "encode"),
    [
        ("base_column_stats_0000.hfile", statistics.decode_statistics, statistics.encode_statistics),
        ("base_partition_stats_0000.hfile", statistics.decode_statistics, statistics.encode_statistics),
        ("base_record_index_0000.hfile", locations.decode_locations, locations.encode_locations),
        ("base_files_0000.hfile", records.decode_files, records.encode_files),
        ("base_secondary_index_name_idx_0000.hfile", records.decode_secondary, records.encode_secondary),
    ],
)
def test_records_of_hudi_are_encoded_as_hudi_does(name: str, decode: Any, encode: Any) -> None:
    entries, text = fixture_entries(name)
    assert schema.record_node(text) == schema.record_node(schema.SCHEMA)
    expected = stored(entries, text)
    for record in expected.values():
        record["_hoodie_file_name"] = None  # Hudi's compaction fills this column of some records.
    assert stored(encode(decode(entries, text))) == expected


@pytest.mark.parametrize("name", ["base_bloom_filters_0001.hfile", "base_expr_index_idx_upper_0001.hfile"])
def test_file_group_without_records_is_decoded(name: str) -> None:
    assert records.decode_blooms(*fixture_entries(name)).num_rows == 0


def test_fields_that_older_releases_lack_have_their_defaults() -> None:
    old = json.loads(schema.SCHEMA)
    old["fields"] = [field for field in old["fields"] if field["name"] not in ("SecondaryIndexMetadata",)]
    stats = next(field for field in old["fields"] if field["name"] == "ColumnStatsMetadata")["type"][1]
    stats["fields"] = [field for field in stats["fields"] if field["name"] not in ("isTightBound", "valueType")]
    location = next(field for field in old["fields"] if field["name"] == "recordIndexMetadata")["type"][1]
    location["fields"] = [f for f in location["fields"] if f["name"] not in ("position", "fileId", "fileIdEncoding")]
    text, out = json.dumps(old), io.BytesIO()
    info = {
        "fileName": "f", "columnName": "c", "minValue": {"value": 1}, "maxValue": {"value": 1}, "valueCount": 1,
        "nullCount": 0, "totalSize": 1, "totalUncompressedSize": 1, "isDeleted": False,
    }  # fmt: skip
    fastavro.schemaless_writer(out, fastavro.parse_schema(old), {"key": "", "type": 3, "ColumnStatsMetadata": info})
    (row,) = statistics.decode_statistics(
        pa.table([[b"k"], [out.getvalue()]], names=["key", "value"]), text
    ).to_pylist()
    assert (row["name"], row["tight"], row["type_ordinal"], row["min_number"]) == ("f", False, None, 1)
    out = io.BytesIO()
    place = {"partitionName": "p", "fileIdHighBits": 1, "fileIdLowBits": -1, "fileIndex": 3, "instantTime": 5}
    fastavro.schemaless_writer(out, fastavro.parse_schema(old), {"key": "", "type": 5, "recordIndexMetadata": place})
    (row,) = locations.decode_locations(entry(out), text).to_pylist()
    assert row["file_id"] == "00000000-0000-0001-ffff-ffffffffffff-3"
    empty = pa.table([pa.array([], pa.binary())] * 2, names=["key", "value"])
    assert records.decode_secondary(empty, text).num_rows == 0


def test_record_of_another_kind_is_corrupt() -> None:
    entries = records.encode_files(file_rows({"a": {"f": (1, False)}}))
    for decode in (statistics.decode_statistics, locations.decode_locations, records.decode_blooms):
        with pytest.raises(CorruptTableError, match="'a' has type 2"):
            decode(entries, schema.SCHEMA)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '"string"', '{"type":"record","name":"x","fields":[]}', "[" * 3000, '{"type":"x"}']
)
def test_schema_that_declares_no_metadata_records_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptTableError):
        schema.record_node(text)


def test_timedelta_is_not_a_type_with_statistics() -> None:
    assert not has_statistics(pa.array([timedelta(1)]).type, "V2")
    assert not has_statistics(pa.list_(pa.int32()), "V2")
    assert pc.all(pa.array([has_statistics(kind, "V2") for kind, _ in TYPES])).as_py()
