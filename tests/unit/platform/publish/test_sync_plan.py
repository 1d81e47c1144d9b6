"""Metastore sync: declarations as in Hudi's sync, refusals, and recovery after failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.names import partition_name, partition_values, same_location
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable
from lakehouse.platform.publish.column_types import hive_columns, hive_type, is_widening, spark_json
from lakehouse.platform.publish.sync import plan, sync
from lakehouse.platform.publish.sync_plan import LAST_COMMIT, LAST_COMPLETION

DB = "sales"
OPTIONS = {"hoodie.datasource.hive_sync.database": DB}
PLAIN = Format(input_format="org.apache.hadoop.mapred.TextInputFormat", output_format="o", serde="s")


def rows(*regions: str, **more: Any) -> pa.Table:
    """Return one row per region."""
    columns = {"id": [f"k{n}" for n, _ in enumerate(regions)], "Region": list(regions), "fare": [1] * len(regions)}
    table = pa.table({**columns, **{name: [value] * len(regions) for name, value in more.items()}})
    return table.set_column(2, "fare", table["fare"].cast(pa.int32()))


def make(place: Path, *, options: dict[str, str] | None = None, **declared: Any) -> Table:
    """Return an empty table, partitioned by region by default."""
    settings = {"hoodie.datasource.write.hive_style_partitioning": "true", **OPTIONS, **(options or {})}
    declared = {"partition_by": ["Region"], **declared}
    return Table.create(str(place / "trips"), name="trips", record_key=["id"], options=settings, **declared)


def names(metastore: MemoryMetastore, table: str = "trips") -> tuple[str, ...]:
    return metastore.partition_names(DB, table)


def synced(metastore: MemoryMetastore, table: str = "trips") -> HiveTable:
    found = metastore.table(DB, table)
    assert found is not None
    return found


@pytest.fixture
def metastore() -> MemoryMetastore:
    return MemoryMetastore(page=2)


def test_first_sync_declares_table_and_partitions(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", "us"))
    report = sync(table, metastore)
    (done,) = report.tables
    assert (done.table, done.created, done.added) == ("sales.trips", True, 2)
    found = synced(metastore)
    assert [c.name for c in found.columns[-3:]] == ["_hoodie_file_name", "id", "fare"]
    assert found.partition_columns == (Column(name="region", type="string"),)
    assert names(metastore) == ("region=eu", "region=us")
    (eu, _) = metastore.partitions(DB, "trips", names(metastore))
    assert eu.location == f"{table.location}/Region=eu" and eu.columns == found.columns and eu.format == found.format
    newest = table.timeline.writes().by_completion()[-1]
    assert found.parameters[LAST_COMMIT] == newest.requested
    assert found.parameters[LAST_COMPLETION] == newest.completion


def test_sync_refuses_files_with_earlier_names_unless_readers_use_schema_on_read(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", note="x"))
    table.alter().drop_column("note").execute()
    sync(table, metastore)
    assert [c.name for c in synced(metastore).columns[-2:]] == ["id", "fare"]
    table.alter().rename_column("fare", "price").execute()
    with pytest.raises(UnsupportedError, match="present names and types of all columns"):
        sync(table, metastore)
    assert [c.name for c in synced(metastore).columns[-2:]] == ["id", "fare"]
    sync(Table.open(table.location, options={**OPTIONS, "lakehouse.sync.renamed.columns": "true"}), metastore)
    assert [c.name for c in synced(metastore).columns[-2:]] == ["id", "price"]
    table.insert_overwrite_table(table.scan().to_arrow())
    assert [t.changes for t in sync(table, metastore).tables] == [()]


def test_sync_stores_sizes_so_that_the_metastore_lists_no_files(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    sync(table, metastore)
    (eu,) = metastore.partitions(DB, "trips", names(metastore))
    (file,) = Path(eu.location).glob("*.parquet")
    assert eu.parameters == {"numFiles": "1", "totalSize": str(file.stat().st_size)}


def test_spark_schema_has_partition_columns_last(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", **{f"wide_column_{n}": 1 for n in range(60)}))
    sync(table, metastore)
    parameters = synced(metastore).parameters
    pieces = [
        parameters[f"spark.sql.sources.schema.part.{n}"]
        for n in range(int(parameters["spark.sql.sources.schema.numParts"]))
    ]
    assert len(pieces) > 1 and max(map(len, pieces)) == 4000
    fields = json.loads("".join(pieces))["fields"]
    assert (
        fields[5]["name"] == "id" and fields[-1]["name"] == parameters["spark.sql.sources.schema.partCol.0"] == "Region"
    )


def test_second_sync_changes_nothing(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", "us"))
    sync(table, metastore)
    before = len(metastore.requests)
    assert plan(table, metastore).is_empty
    assert not sync(table, metastore).did_something
    assert set(metastore.requests[before:]) == {"table", "partition_names", "partitions"}


def test_sync_adds_and_drops_partitions_as_in_the_table(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", "us"))
    sync(table, metastore)
    table.delete_partitions(["Region=eu"])
    table.insert(rows("asia"))
    (done,) = sync(table, metastore).tables
    assert (done.added, done.dropped) == (1, 1)
    assert names(metastore) == ("region=asia", "region=us")


@pytest.mark.parametrize(
    ("strategy", "own_name", "shown"),
    [
        ("ALL", "true", {"trips_ro": True, "trips_rt": False, "trips": False}),
        ("ALL", "false", {"trips_ro": True, "trips_rt": False}),
        ("RO", "true", {"trips": True}),
        ("RT", "true", {"trips": False}),
    ],
)
def test_merge_on_read_tables_follow_the_strategy(
    tmp_path: Path, metastore: MemoryMetastore, strategy: str, own_name: str, shown: dict[str, bool]
) -> None:
    strategy_options = {
        "hoodie.datasource.hive_sync.table.strategy": strategy,
        "hoodie.meta.sync.sync_snapshot_with_table_name": own_name,
    }
    make(tmp_path, table_type="MERGE_ON_READ").insert(rows("eu"))
    table = Table.open(str(tmp_path / "trips"), options={**OPTIONS, **strategy_options})
    assert {t.table.removeprefix("sales.") for t in sync(table, metastore).tables} == set(shown)
    for name, base_only in shown.items():
        format = synced(metastore, name).format
        assert format.input_format.endswith("RealtimeInputFormat") is not base_only
        assert format.serde_properties["hoodie.query.as.ro.table"] == str(base_only).lower()
        assert names(metastore, name) == ("region=eu",)


def test_sync_of_a_table_without_partitions(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path, partition_by=[])
    table.insert(rows("eu"))
    sync(table, metastore)
    assert synced(metastore).partition_columns == () and plan(table, metastore).is_empty


def test_new_columns_and_wider_types_are_synced_to_table_and_partitions(
    tmp_path: Path, metastore: MemoryMetastore
) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    sync(table, metastore)
    table.upsert(rows("eu", tip=2.5).set_column(2, "fare", pa.array([2**40])))
    (done,) = sync(table, metastore).tables
    assert done.changes == ("columns", "properties")
    kinds = {c.name: c.type for c in synced(metastore).columns}
    assert (kinds["fare"], kinds["tip"]) == ("bigint", "double")
    (partition,) = metastore.partitions(DB, "trips", ["region=eu"])
    assert {c.name: c.type for c in partition.columns} == kinds
    assert plan(table, metastore).is_empty


def test_sync_keeps_comments_and_parameters_of_the_metastore(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    sync(table, metastore)
    found = synced(metastore)
    commented = tuple(replace(c, comment="in cents") if c.name == "fare" else c for c in found.columns)
    metastore.alter_table(replace(found, columns=commented, parameters={**found.parameters, "team": "a"}))
    table.upsert(rows("eu", tip=2.5))
    sync(table, metastore)
    assert {c.name: c.comment for c in synced(metastore).columns}["fare"] == "in cents"
    assert synced(metastore).parameters["team"] == "a"


def test_column_that_would_become_narrower_is_refused(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    sync(table, metastore)
    found = synced(metastore)
    other = tuple(replace(c, type="timestamp") if c.name == "fare" else c for c in found.columns)
    metastore.alter_table(replace(found, columns=other))
    with pytest.raises(UserError, match=r"'fare' of sales\.trips is timestamp in the metastore and int in the table"):
        sync(table, metastore)


@pytest.mark.parametrize("kind", ["elsewhere", "no hudi", "other partitions"])
def test_other_table_of_the_same_name_is_not_changed(tmp_path: Path, metastore: MemoryMetastore, kind: str) -> None:
    table = make(tmp_path, table_type="MERGE_ON_READ")
    table.insert(rows("eu"))
    metastore.create_database(DB)
    hudi = Format(input_format="org.apache.hudi.hadoop.HoodieParquetInputFormat", output_format="o", serde="s")
    other = HiveTable(
        database=DB,
        name="trips",
        columns=(Column(name="a", type="int"),),
        partition_columns=(Column(name="region" if kind != "other partitions" else "day", type="string"),),
        location="/elsewhere/trips" if kind == "elsewhere" else table.location,
        format=PLAIN if kind == "no hudi" else hudi,
    )
    metastore.create_table(other)
    kept = synced(metastore)
    with pytest.raises(UserError, match=r"sales\.trips"):
        sync(table, metastore)
    assert synced(metastore) == kept
    assert metastore.table(DB, "trips_ro") is None


def test_sync_restores_partitions_that_another_program_changed(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu", "us"))
    sync(table, metastore)
    (right,) = metastore.partitions(DB, "trips", ["region=eu"])
    foreign = replace(right, values=("mars",), location="/elsewhere/mars")
    metastore.add_partitions(DB, "trips", [foreign])
    metastore.alter_partitions(DB, "trips", [replace(right, location="/elsewhere/eu", parameters={"by": "hand"})])
    (done,) = sync(table, metastore).tables
    assert (done.altered, done.dropped) == (1, 1)
    (found,) = metastore.partitions(DB, "trips", ["region=eu"])
    assert found.location == right.location and found.parameters == {"by": "hand"}
    assert names(metastore) == ("region=eu", "region=us")


VALUES = ("a=b/c", "x%y:z", "ü ö", "2025-03-01 00:00", "#'\"{}[]^?*\\")


def test_reserved_characters_in_paths_are_unescaped_values(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path, options={"hoodie.datasource.write.partitionpath.urlencode": "true"})
    table.insert(rows(*VALUES))
    sync(table, metastore)
    assert {partition_values(name)[0] for name in names(metastore)} == set(VALUES)
    partitions = metastore.partitions(DB, "trips", names(metastore))
    assert all(Path(partition.location).is_dir() for partition in partitions)
    assert plan(table, metastore).is_empty


def test_paths_without_hive_style_are_synced_by_value(tmp_path: Path, metastore: MemoryMetastore) -> None:
    settings = {"hoodie.datasource.write.hive_style_partitioning": "false"}
    table = make(tmp_path, options=settings, partition_by=["y", "m", "d"])
    table.insert(rows("eu", y="2025", m="03", d="01"))
    sync(table, metastore)
    assert names(metastore) == ("y=2025/m=03/d=01",)
    (partition,) = metastore.partitions(DB, "trips", names(metastore))
    assert partition.location == f"{table.location}/2025/03/01"


def test_day_levels_become_one_value_and_null_becomes_hives_null(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path, options={"hoodie.datasource.write.hive_style_partitioning": "false"})
    regions = pa.array(["2025/03/01", None])
    table.insert(rows("a", "b").set_column(1, "Region", regions))
    sync(table, metastore)
    assert names(metastore) == ("region=2025-03-01", "region=__HIVE_DEFAULT_PARTITION__")
    table.insert(rows("2025-03-01"))
    report = sync(table, metastore)
    assert list(report.skipped) == ["2025/03/01"] and "name of '2025-03-01'" in report.skipped["2025/03/01"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_next_sync_recovers_from_a_failure_at_any_request(tmp_path: Path, moment: str) -> None:
    table = make(tmp_path, table_type="MERGE_ON_READ")
    table.insert(rows("eu", "us", "asia"))
    whole = MemoryMetastore(page=2)
    sync(table, whole)
    assert len(whole.requests) > 10
    for number in range(1, len(whole.requests) + 1):
        dying = MemoryMetastore(page=2)
        setattr(dying, moment, _fails_at(number))
        with pytest.raises(RetryableError, match="the metastore is down"):
            sync(table, dying)
        for name in ("trips", "trips_ro", "trips_rt"):
            there = dying.table(DB, name)
            if there is not None and LAST_COMMIT in there.parameters:
                assert names(dying, name) == names(whole, name), "the commit is stored after the partitions"
        setattr(dying, moment, None)
        sync(table, dying)
        for name in ("trips", "trips_ro", "trips_rt"):
            assert synced(dying, name) == synced(whole, name)
            assert names(dying, name) == names(whole, name)


def _fails_at(number: int) -> Callable[[str, int], None]:
    def fail(_verb: str, at: int) -> None:
        if at == number:
            raise RetryableError("the metastore is down")

    return fail


def test_concurrent_creation_of_the_table_is_retryable(tmp_path: Path) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    metastore, other = MemoryMetastore(), MemoryMetastore()
    sync(table, other)

    def rival(verb: str, _: int) -> None:
        if verb == "create_table":
            metastore.before = None
            metastore.create_table(synced(other))

    metastore.before = rival
    with pytest.raises(RetryableError, match="at the same time"):
        sync(table, metastore)
    sync(table, metastore)
    assert names(metastore) == ("region=eu",)


def test_sync_of_a_table_without_columns_is_refused(tmp_path: Path, metastore: MemoryMetastore) -> None:
    with pytest.raises(UserError, match="has no columns yet"):
        sync(make(tmp_path), metastore)


def test_forced_plan_of_a_synced_table_is_empty(tmp_path: Path, metastore: MemoryMetastore) -> None:
    table = make(tmp_path)
    table.insert(rows("eu"))
    sync(table, metastore)
    assert plan(table, metastore, force=True).is_empty


TYPES = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("by", pa.map_(pa.string(), pa.struct([pa.field("X", pa.int64())]))),
        pa.field("raw", pa.binary(4)),
        pa.field("clock", pa.time64("us")),
    ]
)


def test_types_map_to_hive_and_spark() -> None:
    kinds = [column.type for column in hive_columns(TYPES)]
    nested = ["array<string>", "map<string,struct<x:bigint>>"]
    assert kinds == ["bigint", "decimal(10,2)", "date", *nested, "binary", "bigint"]
    assert hive_type(pa.timestamp("us"), "at", timestamps=True) == "timestamp"
    fields = {f["name"]: f for f in json.loads(spark_json(TYPES))["fields"]}
    assert fields["at"]["type"] == "timestamp" and not fields["day"]["nullable"]
    assert fields["tags"]["type"] == {"type": "array", "elementType": "string", "containsNull": False}
    assert fields["by"]["type"]["valueType"]["fields"][0]["name"] == "X"


def test_types_and_names_that_hive_lacks_are_refused() -> None:
    with pytest.raises(UserError, match="'n' has type uint64"):
        hive_columns(pa.schema([pa.field("n", pa.uint64())]))
    with pytest.raises(UserError, match="Hive ignores case"):
        hive_columns(pa.schema([pa.field("n", pa.int64()), pa.field("N", pa.int64())]))


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        ("int", "bigint", True),
        ("float", "double", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(10,3)", False),
        ("struct<a:int>", "struct<a:int,b:int>", True),
        ("bigint", "int", False),
        ("bigint", "timestamp", False),
    ],
)
def test_is_widening_accepts_only_wider_types(before: str, after: str, may: bool) -> None:
    assert is_widening(before, after) is may


def test_same_location_ignores_notation() -> None:
    assert same_location("/a/b/", "file:/a/b") and same_location("file:///a/b", "/a//b")
    assert same_location("s3a://lake/t", "s3://lake/t") and not same_location("s3://lake/t", "s3://lake2/t")
    assert not same_location("/a:/b", "/b")


def test_partition_names_equal_those_of_hive() -> None:
    assert partition_name(["Day", "h"], ["2025-03-01 07:00", ""]) == (
        "day=2025-03-01 07%3A00/h=__HIVE_DEFAULT_PARTITION__"
    )
    empty = HivePartition(values=("",), location="/p", format=PLAIN, columns=())
    store = MemoryMetastore()
    store.create_table(
        HiveTable(
            database="default",
            name="t",
            columns=(),
            partition_columns=(Column(name="p", type="string"),),
            location="/t",
            format=PLAIN,
        )
    )
    store.add_partitions("default", "t", [empty])
    assert store.partition_names("default", "t") == ("p=__HIVE_DEFAULT_PARTITION__",)
