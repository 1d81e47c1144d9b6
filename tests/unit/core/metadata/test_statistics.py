"""Statistics of columns in the metadata table are those of the values in the files."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from tests.support.metadata_files import bounds, listing, records
from tests.support.tables import Shape, batch, make_env, make_table, row

ENABLED = {"hoodie.metadata.enable": "true"}
_DAY = dt.date(1970, 1, 1)


def create(schema: pa.Schema | None = None, type: str = "COPY_ON_WRITE", **options: str) -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        table_type=type,
        schema=schema,
        options={**ENABLED, **options},
        env=env,
    )


def storage_of(table: Table) -> Storage:
    return table.refresh().env.storage


def expected(storage: Storage, partition: str, name: str, column: str) -> tuple[Any, Any, int, int]:
    """Return the bounds of a column of a base file, computed from its values."""
    path = f"{partition}/{name}" if partition else name
    with storage.open_input(path) as source:
        values = pq.read_table(source, columns=[column.split(".", maxsplit=1)[0]]).column(0)
    for field in column.split(".")[1:]:
        values = pa.chunked_array([pa.compute.struct_field(chunk, field) for chunk in values.chunks])
    found = values.to_pylist()
    present = [value for value in found if value is not None]
    order = [math.inf if isinstance(value, float) and math.isnan(value) else value for value in present]
    if not present:
        return None, None, len(found), len(found)
    low, high = present[order.index(min(order))], present[order.index(max(order))]
    return stored(low), stored(high), len(found) - len(present), len(found)


def stored(value: Any) -> Any:
    """Return a value in the form in which records of version V2 store it."""
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(value, dt.date):
        return (value - _DAY).days
    if isinstance(value, Decimal):
        unscaled = int(value.scaleb(2))
        return unscaled.to_bytes((unscaled.bit_length() // 8) + 1, "big", signed=True)
    return value


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(12, 2)),
        ("flag", pa.bool_()),
        ("nothing", pa.string()),
        ("person", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)
LONG = "x" * 9_000


def rows() -> pa.Table:
    moment = dt.datetime(1969, 5, 6, 7, 8, 9, 123_456, tzinfo=dt.UTC)
    columns: dict[str, list[Any]] = {
        "id": ["a", "b", "c", "d"],
        "p": ["x", "x", "x", "y"],
        "n": [3, None, -7, 1],
        "big": [2**60, -(2**60), 0, 1],
        "f": [1.5, math.nan, -2.5, 7.0],
        "g": [math.nan, math.nan, None, 0.5],
        "text": [LONG + "b", "short", LONG + "a", "t"],
        "raw": [b"\xff\x00", b"\x01", None, b""],
        "day": [dt.date(1960, 1, 2), dt.date(2030, 3, 4), None, _DAY],
        "at": [moment, moment + dt.timedelta(days=40_000), None, moment],
        "price": [Decimal("-12345678.90"), Decimal("0.01"), Decimal("9999999999.99"), None],
        "flag": [True, False, None, True],
        "nothing": [None, None, None, None],
        "person": [{"name": "Ann", "age": 30}, None, {"name": None, "age": -1}, {"name": "Bo", "age": 5}],
        "tags": [["t"], None, [], ["u"]],
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}, SCHEMA)


def check_base_files(storage: Storage, columns: list[str]) -> int:
    found, checked = bounds(storage), 0
    for partition, files in listing(storage).items():
        for name in files:
            if name.endswith(".parquet"):
                for column in columns:
                    got, want = found[name, column], expected(storage, partition, name, column)
                    assert repr(got) == repr(want), (column, got, want)
                    checked += 1
    return checked


FLAT = [field.name for field in SCHEMA if field.name not in ("person", "tags")]
META = ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key"]


def test_statistics_are_those_of_the_values_for_every_type() -> None:
    table = create(SCHEMA)
    table.insert(rows())
    storage = storage_of(table)
    assert read_definitions(storage)["column_stats"].source_fields == (*META, *FLAT)
    assert check_base_files(storage, [*META, *FLAT]) == 2 * (len(META) + len(FLAT))
    assert {column for _, column in bounds(storage)} == {*META, *FLAT}


def test_statistics_of_declared_columns_include_nested_fields() -> None:
    columns = ["person.age", "person.name", "n"]
    table = create(SCHEMA, **{"hoodie.metadata.index.column.stats.column.list": ", ".join(columns)})
    table.insert(rows())
    table.upsert(rows().slice(1, 1))
    storage = storage_of(table)
    assert read_definitions(storage)["column_stats"].source_fields == (*META, *columns)
    assert check_base_files(storage, [*META, *columns]) >= 3 * 6


def test_partition_statistics_cover_all_values_of_the_partition() -> None:
    table = create(SCHEMA)
    table.insert(rows().slice(0, 2))
    table.insert(rows().slice(2, 2))
    found = bounds(storage_of(table), "partition_stats")
    assert found["x", "n"][:2] == (-7, 3)
    assert found["x", "text"][:2] == (LONG + "a", "short") or found["x", "text"][:2] == ("short", LONG + "b")
    assert found["x", "f"][0] == -2.5 and math.isnan(found["x", "f"][1])
    assert found["x", "nothing"][:2] == (None, None) and found["x", "nothing"][2] == found["x", "nothing"][3]
    assert found["y", "big"][:2] == (1, 1)


def test_log_files_have_statistics_of_their_rows() -> None:
    table = create(SCHEMA, "MERGE_ON_READ")
    table.insert(rows())
    table.upsert(rows().slice(0, 1).set_column(2, "n", pa.array([99], pa.int32())))
    table.delete(["d"])
    storage = storage_of(table)
    found = bounds(storage)
    logs = [name for files in listing(storage).values() for name in files if name.startswith(".")]
    assert len(logs) == 2
    values = {found[name, "n"] for name in logs}
    assert values == {(99, 99, 0, 1), (None, None, 0, 0)}
    assert all((name, column) in found for name in logs for column in (*META, *FLAT))


def test_partial_updates_have_no_statistics_of_their_log_files() -> None:
    table = create(SCHEMA, "MERGE_ON_READ", **{"lakehouse.schema.missing.column": "keep"})
    table.insert(rows())
    table.upsert(pa.table({"id": ["a"], "p": ["x"], "n": pa.array([99], pa.int32())}))
    storage = storage_of(table)
    logs = [name for files in listing(storage).values() for name in files if name.startswith(".")]
    assert len(logs) == 1
    assert not [key for key in bounds(storage) if key[0] == logs[0]]
    assert bounds(storage, "partition_stats")["x", "n"][:2] == (-7, 99)


def test_new_columns_get_statistics_and_known_ones_are_kept() -> None:
    table = create(None)
    first = pa.table({"id": ["a"], "p": ["x"], "n": [1]})
    table.insert(first)
    storage = storage_of(table)
    assert read_definitions(storage)["column_stats"].source_fields == (*META, "id", "p", "n")
    table.insert(pa.table({"id": ["b"], "p": ["y"], "n": [2], "m": ["new"]}))
    assert read_definitions(storage)["column_stats"].source_fields == (*META, "id", "p", "n", "m")
    found = bounds(storage)
    assert [value[:2] for (_, column), value in found.items() if column == "m"] == [("new", "new")]
    table.insert(pa.table({"id": ["c"], "p": ["y"], "n": [3], "m": pa.array([None], pa.string())}))
    assert len([value for (_, column), value in bounds(storage).items() if column == "m"]) >= 2


def test_number_of_columns_is_limited() -> None:
    table = create(None, **{"hoodie.metadata.index.column.stats.max.columns.to.index": "3"})
    table.insert(pa.table({"id": ["a"], "p": ["x"], "n": [1], "m": [1]}))
    storage = storage_of(table)
    assert read_definitions(storage)["column_stats"].source_fields == (*META, "id", "p", "n")
    # The column `m` has values in stored files, so it gets no statistics later either.
    table.insert(pa.table({"id": ["b"], "p": ["x"], "n": [1], "m": [1]}))
    assert {column for _, column in bounds(storage)} == {*META, "id", "p", "n"}


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clean_removes_statistics_of_removed_files(type: str) -> None:
    table = make_table(Shape(type=type, options=ENABLED))
    for number in range(4):
        table.upsert(batch([row("k1", ts=number), row("k2", p="b", ts=number)]))
        if type == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    storage = storage_of(table)
    files = {name for names in listing(storage).values() for name in names}
    assert {name for name, _ in bounds(storage)} == files


def test_deleted_partition_has_no_statistics() -> None:
    table = make_table(Shape(options=ENABLED))
    table.insert(batch([row("k1"), row("k2", p="b")]))
    storage = storage_of(table)
    assert {name for name, _ in bounds(storage, "partition_stats")} == {"a", "b"}
    table.delete_partitions(["a"])
    assert {name for name, _ in bounds(storage, "partition_stats")} == {"b"}
    table.insert(batch([row("k3", ts=50)]))
    assert bounds(storage, "partition_stats")["a", "ts"][:2] == (50, 50)


def tight_flags(storage: Storage) -> dict[tuple[str, str], bool]:
    """Return (partition, column) -> whether its row is tight."""
    stats = [record["ColumnStatsMetadata"] for record in records(storage, "partition_stats").values()]
    return {(one["fileName"], one["columnName"]): one["isTightBound"] for one in stats}


def numbers(first: int, last: int, value: float | None) -> pa.Table:
    """Return rows with the ids [first, last) of partition p, all with this value and a text that is null."""
    ids = [f"k{number}" for number in range(first, last)]
    columns = {"id": ids, "p": ["p"] * len(ids), "v": [value] * len(ids), "note": [None] * len(ids)}
    return pa.table(columns, schema=pa.schema([("id", "string"), ("p", "string"), ("v", "double"), ("note", "string")]))


def test_partition_statistics_are_those_of_the_newest_files_after_an_update() -> None:
    table = create(numbers(0, 1, 1.0).schema)
    table.insert(numbers(0, 10, 1000.0))
    table.upsert(numbers(0, 10, 5.0))
    table.upsert(numbers(10, 14, math.nan))
    storage = storage_of(table)
    found = bounds(storage, "partition_stats")["p", "v"]
    assert found[0] == 5.0
    assert math.isnan(found[1])
    assert found[2:] == (0, 14)
    assert tight_flags(storage)["p", "v"]


def test_partition_statistics_of_a_null_text_are_widened_after_an_update() -> None:
    table = create(numbers(0, 1, 1.0).schema)
    table.insert(numbers(0, 10, 1.0))
    table.insert(numbers(10, 12, 1.0))
    table.upsert(numbers(0, 1, 2.0))
    storage = storage_of(table)
    assert bounds(storage, "partition_stats")["p", "note"][:2] == (None, None)
    assert bounds(storage, "partition_stats")["p", "v"] == (1.0, 2.0, 0, 12)


def test_partition_statistics_are_computed_after_a_compaction() -> None:
    table = create(numbers(0, 1, 1.0).schema, "MERGE_ON_READ")
    table.upsert(numbers(0, 10, 1000.0))
    table.upsert(numbers(0, 10, 5.0))
    assert bounds(storage_of(table), "partition_stats")["p", "v"] == (5.0, 1000.0, 0, 20)
    table.services.compaction.run(force=True)
    assert bounds(storage_of(table), "partition_stats")["p", "v"] == (5.0, 5.0, 0, 10)


def test_partition_without_files_has_no_statistics() -> None:
    table = create(numbers(0, 1, 1.0).schema)
    table.insert(numbers(0, 10, 1.0))
    table.insert_overwrite_table(numbers(0, 3, 2.0).set_column(1, "p", pa.array(["q"] * 3)))
    assert {name for name, _ in bounds(storage_of(table), "partition_stats")} == {"q"}


def texts(first: int, last: int, note: str | None) -> pa.Table:
    """Return rows with the ids [first, last) of partition p, all with this text."""
    rows = numbers(first, last, 1.0)
    return rows.set_column(3, rows.schema.field("note"), pa.array([note] * rows.num_rows, pa.string()))


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ((None, "b", None), ("b", "b", 8, 12)),
        ((None, None, "b"), ("b", "b", 8, 12)),
        (("c", None, "b"), ("b", "c", 4, 12)),
    ],
)
def test_partition_statistics_of_texts_have_bounds_beside_files_of_nulls(
    kind: str, notes: tuple[str | None, ...], expected: tuple[str, str, int, int]
) -> None:
    table = create(numbers(0, 1, 1.0).schema, kind, **{"hoodie.parquet.small.file.limit": "0"})
    for number, note in enumerate(notes):
        table.bulk_insert(texts(4 * number, 4 * number + 4, note))
    assert bounds(storage_of(table), "partition_stats")["p", "note"] == expected
