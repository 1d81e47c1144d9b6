"""Metastore sync: lakehouse declares the same tables as Hudi's sync, and Hudi reads them through the metastore."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pymetastore.hive_metastore import ThriftHiveMetastore

from lakehouse import Table
from lakehouse.core.timeline.locks.metastore_client import MetastoreClient
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.publish.sync import plan, sync
from tests.support.hudi import Hudi, find_jar

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

#: Table parameters that differ: times, statistics of the metastore and the writer's version.
OWN = {"transient_lastDdlTime", "numFiles", "totalSize", "hudi_writer_version", "spark.sql.create.version"}
HIVE_STYLE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
MERGE_ON_READ = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
SYNC = "hoodie.datasource.hive_sync."
EXTRACTOR, FIELDS, HIVE = f"{SYNC}partition_extractor_class", f"{SYNC}partition_fields", "org.apache.hudi.hive."
URL_ENCODE = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
NAMES = "hoodie.meta.sync.sync_snapshot_with_table_name"
#: Name, partition columns, options of the table, options of the sync, tables in the metastore.
KINDS: list[tuple[str, str, dict[str, str], dict[str, str], list[str]]] = [
    ("hive_style", "region,hour", HIVE_STYLE, {}, ["hive_style"]),
    ("levels", "y,m,d", {}, {}, ["levels"]),
    ("one_day", "day", HIVE_STYLE, {}, ["one_day"]),
    ("day_levels", "path", {}, {}, ["day_levels"]),
    ("nowhere", "nothing", HIVE_STYLE, {}, ["nowhere"]),
    ("whole", "", {}, {}, ["whole"]),
    ("times", "region", HIVE_STYLE, {f"{SYNC}support_timestamp": "true"}, ["times"]),
    ("mor", "region", {**HIVE_STYLE, **MERGE_ON_READ}, {}, ["mor", "mor_ro", "mor_rt"]),
    ("mor_base", "region", {**HIVE_STYLE, **MERGE_ON_READ}, {f"{SYNC}table.strategy": "RO"}, ["mor_base"]),
    ("mor_all", "region", {**HIVE_STYLE, **MERGE_ON_READ}, {f"{SYNC}table.strategy": "RT"}, ["mor_all"]),
    ("multi", "path", {}, {EXTRACTOR: f"{HIVE}MultiPartKeysValueExtractor", FIELDS: "yy,mm,dd"}, ["multi"]),
    ("slash_day", "path", {}, {EXTRACTOR: f"{HIVE}SlashEncodedDayPartitionValueExtractor"}, ["slash_day"]),
    ("renamed", "region", HIVE_STYLE, {FIELDS: "area"}, ["renamed"]),
    ("managed", "region", HIVE_STYLE, {f"{SYNC}create_managed_table": "true"}, ["managed"]),
    ("plain_hive", "region", HIVE_STYLE, {f"{SYNC}sync_as_datasource": "false"}, ["plain_hive"]),
    ("no_meta", "region", HIVE_STYLE, {f"{SYNC}omit_metadata_fields": "true"}, ["no_meta"]),
    ("own", "region", HIVE_STYLE, {f"{SYNC}table_properties": "a=1", f"{SYNC}serde_properties": "c=2"}, ["own"]),
    (
        "escaped",
        "odd",
        {**HIVE_STYLE, **URL_ENCODE},
        {EXTRACTOR: f"{HIVE}HiveStylePartitionValueExtractor"},
        ["escaped"],
    ),
]


@pytest.fixture(scope="module")
def hudi(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    """Run Hudi on Spark with the metastore as catalog."""
    settings = {"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": hive_uri}
    found = Hudi(find_jar(), tmp_path_factory.mktemp("hive-hudi"), settings)
    yield found
    found.close()


@pytest.fixture(scope="module")
def metastore(hive_uri: str) -> Iterator[HiveMetastore]:
    made = HiveMetastore(hive_uri, timeout_s=60)
    yield made
    made.close()


def rows(count: int = 4, *, price: str = "1.25") -> pa.Table:
    """Return rows with a column of each type, in two regions."""
    numbers = range(count)
    nested = pa.struct([pa.field("A", pa.int32()), pa.field("bs", pa.list_(pa.decimal128(20, 3)))])
    return pa.table(
        {
            "id": pa.array(list(numbers), pa.int64()),
            "Name": [f"n{n}" for n in numbers],
            "ts": pa.array([7] * count, pa.int64()),
            "small": pa.array(list(numbers), pa.int32()),
            "f": pa.array([1.5] * count, pa.float32()),
            "ok": [True] * count,
            "at": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "local": pa.array([0] * count, pa.timestamp("us")),
            "price": pa.array([Decimal(price)] * count, pa.decimal128(10, 2)),
            "raw": pa.array([b"x"] * count, pa.binary()),
            "arr": pa.array([[1, 2]] * count, pa.list_(pa.int32())),
            "by": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "st": pa.array([{"A": 1, "bs": [Decimal("1.100")]}] * count, nested),
            "region": [["eu", "us"][n % 2] for n in numbers],
            "hour": pa.array([5] * count, pa.int32()),
            "y": ["2025"] * count,
            "m": ["03"] * count,
            "d": ["01"] * count,
            "path": ["2025/03/01"] * count,
            "day": pa.array([date(2025, 3, 1)] * count, pa.date32()),
            "nothing": pa.array([None] * count, pa.string()),
            "odd": [["a/b", "x=y"][n % 2] for n in numbers],
        }
    )


def dump(uri: str, database: str, name: str) -> dict[str, Any]:
    """Return the declaration of a table and its partitions in the metastore, without the parameters OWN."""
    client = MetastoreClient(uri, option="test", timeout_s=60)

    def ask(thrift: ThriftHiveMetastore.Client) -> dict[str, Any]:
        table = thrift.get_table(database, name)
        partitions = thrift.get_partitions(database, name, -1)
        return {
            "type": (table.tableType, table.owner, table.retention, table.viewOriginalText),
            "keys": [(f.name, f.type, f.comment) for f in table.partitionKeys],
            "parameters": {k: v for k, v in table.parameters.items() if k not in OWN},
            **_files(table.sd),
            "partitions": [
                {
                    "values": partition.values,
                    "parameters": {k: v for k, v in partition.parameters.items() if k not in OWN},
                    **_files(partition.sd),
                }
                for partition in partitions
            ],
        }

    try:
        return client.call(ask)
    finally:
        client.close()


def _files(descriptor: Any) -> dict[str, Any]:
    serde = descriptor.serdeInfo
    return {
        "columns": [(f.name, f.type, f.comment) for f in descriptor.cols],
        "location": descriptor.location,
        "formats": (descriptor.inputFormat, descriptor.outputFormat, serde.serializationLib, serde.name),
        "serde": serde.parameters,
        "rest": (
            descriptor.compressed,
            descriptor.numBuckets,
            descriptor.bucketCols,
            descriptor.sortCols,
            descriptor.parameters,
        ),
    }


@pytest.mark.parametrize(("name", "by", "declared", "sync_options", "tables"), KINDS, ids=[kind[0] for kind in KINDS])
def test_sync_declares_the_same_tables_as_hudi(
    hudi: Hudi,
    metastore: HiveMetastore,
    hive_uri: str,
    tmp_path: Path,
    name: str,
    by: str,
    declared: dict[str, str],
    sync_options: dict[str, str],
    tables: list[str],
) -> None:
    location = str(tmp_path / name)
    options = {
        "hoodie.table.name": name,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.partitionpath.field": by,
        f"{SYNC}enable": "true",
        f"{SYNC}mode": "hms",
        f"{SYNC}metastore.uris": hive_uri,
        f"{SYNC}database": "hudis",
        f"{SYNC}table": name,
        **declared,
        **sync_options,
    }
    hudi.write(location, rows(), {k: v for k, v in options.items() if v}, mode="overwrite")
    table = Table.open(location, options={f"{SYNC}database": "ours", f"{SYNC}table": name, **sync_options})
    report = sync(table, metastore)
    assert sorted(t.table for t in report.tables) == sorted(f"ours.{shown}" for shown in tables)
    for shown in tables:
        assert dump(hive_uri, "ours", shown) == dump(hive_uri, "hudis", shown)
    assert plan(table, metastore).is_empty
    # A sync of lakehouse after Hudi's sync changes nothing.
    theirs = table.with_options({f"{SYNC}database": "hudis"})
    assert plan(theirs, metastore).is_empty


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_reads_synced_tables(hudi: Hudi, metastore: HiveMetastore, tmp_path: Path, kind: str) -> None:
    name = kind.lower()
    table = Table.create(
        str(tmp_path / name),
        name=name,
        record_key=["id"],
        partition_by=["region"],
        ordering="ts",
        table_type=kind,
        options={**HIVE_STYLE, f"{SYNC}database": "read"},
    )
    table.insert(rows(6))
    sync(table, metastore)
    table.upsert(rows(3, price="9.75"))
    table.delete(["5"])
    sync(table, metastore)
    assert read(hudi, f"read.{name}") == ours(table)
    if kind == "MERGE_ON_READ":
        assert read(hudi, f"read.{name}_rt") == ours(table)
        assert read(hudi, f"read.{name}_ro") == ours(table, read_optimized=True) != ours(table)
    table.upsert(rows(2).append_column("tip", pa.array([0.5, 0.5])))
    table.delete_partitions(["region=us"])
    sync(table, metastore)
    assert read(hudi, f"read.{name}", "tip") == ours(table, "tip")
    assert metastore.partition_names("read", name) == ("region=eu",)


def read(hudi: Hudi, table: str, *more: str) -> list[dict[str, Any]]:
    columns = ", ".join(("id", "Name", "price", "region", "small", *more))
    hudi.sql(f"REFRESH TABLE {table}")
    return hudi.query(f"SELECT {columns} FROM {table} ORDER BY id").to_pylist()


def ours(table: Table, *more: str, read_optimized: bool = False) -> list[dict[str, Any]]:
    columns = ["id", "Name", "price", "region", "small", *more]
    found = table.scan(columns, read_optimized=read_optimized).to_arrow()
    return found.sort_by("id").select(columns).to_pylist()
