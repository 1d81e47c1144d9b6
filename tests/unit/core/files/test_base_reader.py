"""Base files of any writer, read in the schema of the table (DATA-3.2, DATA-11)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.base.base_reader import BaseFileReader, align
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError, UserError

STORED = pa.table(
    {
        **{name: ["m"] * 3 for name in META_COLUMNS},
        "id": ["a", "b", "c"],
        "n": pa.array([1, None, 3], pa.int32()),
        "inner": [{"x": 1}, None, {"x": None}],
    }
)


@pytest.fixture
def storage() -> MemoryStorage:
    """Return a storage with one base file, `f.parquet`, of two row groups and a footer value."""
    store = MemoryStorage()
    with store.open_output("f.parquet") as sink, pq.ParquetWriter(sink, STORED.schema) as writer:
        writer.write_table(STORED, row_group_size=2)
        writer.add_key_value_metadata({"hoodie_min_record_key": "a"})
    return store


def rows(storage: MemoryStorage, schema: pa.Schema, **kwargs) -> pa.Table:
    """Return all rows in a schema."""
    reader = BaseFileReader(storage, "f.parquet")
    read = pa.concat_tables(reader.batches(schema, **kwargs))
    reader.close()
    return read


def test_columns_are_read_by_name_cast_and_null_if_absent(storage: MemoryStorage) -> None:
    inner = pa.struct([("y", pa.string()), ("x", pa.int64())])
    schema = pa.schema([("new", pa.date32()), ("n", pa.string()), ("inner", inner), ("id", pa.string())])
    read = rows(storage, schema)
    assert read.schema == schema
    assert read.to_pylist() == [
        {"new": None, "n": "1", "inner": {"y": None, "x": 1}, "id": "a"},
        {"new": None, "n": None, "inner": None, "id": "b"},
        {"new": None, "n": "3", "inner": {"y": None, "x": None}, "id": "c"},
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batches_of_any_size_keep_the_order(storage: MemoryStorage, size: int) -> None:
    assert rows(storage, pa.schema([("id", pa.string())]), rows=size).column("id").to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("size", [2, 100])
def test_file_with_none_of_the_columns_keeps_its_rows(storage: MemoryStorage, size: int) -> None:
    read = rows(storage, pa.schema([("other", pa.int64())]), rows=size)
    assert read.to_pylist() == [{"other": None}] * 3


def test_footer_values_are_text_or_none(storage: MemoryStorage) -> None:
    reader = BaseFileReader(storage, "f.parquet")
    assert (reader.footer("hoodie_min_record_key"), reader.footer("nothing"), reader.rows) == ("a", None, 3)
    assert reader.column("id").to_pylist() == ["a", "b", "c"]


def test_meta_columns_with_few_values_stay_dictionary_encoded(storage: MemoryStorage) -> None:
    schema = BaseFileReader(storage, "f.parquet").schema
    encoded = [name for name in schema.names if pa.types.is_dictionary(schema.field(name).type)]
    assert encoded == ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_file_name"]


def test_file_that_is_not_parquet_is_reported_as_corrupt_by_name() -> None:
    store = MemoryStorage()
    store.put("p/bad.parquet", b"PAR1 nothing")
    with pytest.raises(CorruptTableError, match=r"p/bad\.parquet is not a readable Parquet"):
        BaseFileReader(store, "p/bad.parquet")
    with store.open_output("p/other.parquet") as sink:
        pq.write_table(STORED.select(["id"]), sink)
    with pytest.raises(CorruptTableError, match=r"p/other\.parquet .* lacks the meta column"):
        BaseFileReader(store, "p/other.parquet")
    with pytest.raises(NotFoundError):
        BaseFileReader(store, "p/absent.parquet")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(["x"]), pa.int32()),
        (pa.array([2**40]), pa.int32()),
        (pa.array([b"\xff"]), pa.string()),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_column(values: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(UserError, match="column 'v' cannot be"):
        align(pa.table({"v": values}), pa.schema([("v", kind)]))


def test_two_level_lists_of_hudi_are_read_as_lists() -> None:
    store = MemoryStorage()
    with store.open_output("f.parquet") as sink:
        rows = STORED.append_column("l", [[[1, 2], None, []]])
        pq.write_table(rows, sink, use_compliant_nested_type=False)
    reader = BaseFileReader(store, "f.parquet")
    schema = pa.schema([("l", pa.list_(pa.field("element", pa.int64())))])
    assert pa.concat_tables(reader.batches(schema)).column("l").to_pylist() == [[1, 2], None, []]
