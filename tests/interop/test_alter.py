"""Columns that change by ids, in both directions with Apache Hudi, whose option is hoodie.schema.on.read.enable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.format.avro.schema import META_COLUMNS
from tests.support.hudi import Hudi, find_older_jar

pytestmark = pytest.mark.jvm

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
#: Hudi cannot read changed fields of structs with its vectorised reader, and drops no column by default.
ON_READ = {
    "hoodie__schema__on__read__enable": "true",
    "hoodie__datasource__write__schema__allow__auto__evolution__column__drop": "true",
    "spark__sql__parquet__enableVectorizedReader": "false",
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("name", pa.string()),
        ("n", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("place", pa.struct([("zip", pa.int32()), ("city", pa.string())])),
    ]
)


def rows(*keys: str, ts: int = 1) -> pa.Table:
    values = [{"id": k, "p": "p", "ts": ts, "name": f"n{k}", "n": 1, "place": {"zip": 1, "city": "c"}} for k in keys]
    return pa.Table.from_pylist(values, schema=SCHEMA)


def plain(table: pa.Table) -> list[dict[str, Any]]:
    listed = [{k: row[k] for k in sorted(row) if k not in META_COLUMNS} for row in table.to_pylist()]
    return sorted(listed, key=repr)


def assert_same(hudi: Hudi, location: str) -> list[dict[str, Any]]:
    """Compare all rows and return them."""
    ours = plain(Table.open(location).scan().to_arrow())
    assert plain(hudi.query("SELECT * FROM {table}", table=location, **ON_READ)) == ours
    return ours


@pytest.mark.parametrize("kind", KINDS)
def test_hudi_reads_and_continues_a_table_whose_columns_lakehouse_changed(
    kind: str, hudi: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location, name="t", record_key=["id"], partition_by=["p"], ordering="ts", table_type=kind, schema=SCHEMA
    )
    table.upsert(rows("1", "2", "3"))
    table.upsert(rows("2", ts=2))
    builder = table.alter().rename_column("name", "title").drop_column("n").add_column("n", "string", comment="again")
    builder.rename_column("place.zip", "code").set_comment("title", "a title").execute()
    assert {row["n"] for row in assert_same(hudi, location)} == {None}
    table.upsert(pa.table({"id": ["1", "4"], "p": ["p", "p"], "ts": [3, 3], "title": ["t1", "t4"], "n": ["x", "y"]}))
    assert_same(hudi, location)
    for where, keys in (("title = 'n3'", ["3"]), ("title = 't1'", ["1"]), ("n IS NULL", ["2", "3"])):
        matches = hudi.query(f"SELECT id FROM {{table}} WHERE {where}", table=location, **ON_READ)
        assert sorted(matches.column("id").to_pylist()) == keys
        assert sorted(table.scan(["id"], where=where).to_arrow().column("id").to_pylist()) == keys
    for statement in (
        "UPDATE {table} SET title = 'hudi', ts = 20 WHERE id = '2'",
        "ALTER TABLE {table} RENAME COLUMN title TO label",
        "ALTER TABLE {table} ADD COLUMNS (name string)",
        "INSERT INTO {table} (id, ts, label, n, name, p) VALUES ('9', 30L, 'l9', 'n9', 'again', 'p')",
    ):
        hudi.sql(statement, table=location, **ON_READ)
        assert_same(hudi, location)
    table.upsert(pa.table({"id": ["9"], "p": ["p"], "ts": [99], "label": ["ours"]}))
    stored = {row["id"]: (row["label"], row["name"]) for row in assert_same(hudi, location)}
    assert stored["9"] == ("ours", "again") and stored["3"] == ("n3", None)
    table.alter().drop_column("name").rename_column("label", "name").execute()
    assert_same(hudi, location)
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    assert {row["id"]: row["name"] for row in assert_same(hudi, location)}["2"] == "hudi"
    assert not table.validate(deep=True).findings


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_lakehouse_reads_writes_and_services_a_table_that_hudi_evolved(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    location, name = str(tmp_path / "table"), f"evolved_{kind}"
    hudi.sql(
        f"CREATE TABLE {name} (id string, a int, b string, s struct<x:int,y:string>, ts bigint, p string) USING hudi "
        f"PARTITIONED BY (p) LOCATION '{location}' TBLPROPERTIES (primaryKey = 'id', orderingFields = 'ts', "
        f"type = '{kind}', 'hoodie.clean.automatic' = 'false')"
    )
    for statement in (
        f"INSERT INTO {name} VALUES ('1', 1, 'b1', named_struct('x', 1, 'y', 'y1'), 1, 'p'), "
        "('2', 2, 'b2', named_struct('x', 2, 'y', 'y2'), 1, 'p')",
        f"UPDATE {name} SET a = 11 WHERE id = '1'",
        f"ALTER TABLE {name} RENAME COLUMN b TO bb",
        f"ALTER TABLE {name} DROP COLUMN a",
        f"ALTER TABLE {name} ADD COLUMNS (a int COMMENT 'again')",
        f"UPDATE {name} SET bb = 'changed' WHERE id = '2'",
        f"ALTER TABLE {name} ALTER COLUMN a TYPE bigint",
        f"ALTER TABLE {name} RENAME COLUMN s.x TO xx",
        f"ALTER TABLE {name} ALTER COLUMN bb AFTER ts",
    ):
        hudi.sql(statement, hoodie__clean__automatic="false", **ON_READ)
    table = Table.open(location)
    assert table.schema.names == ["id", "s", "ts", "bb", "p", "a"]
    read = {row["id"]: (row["bb"], row["a"], row["s"]["xx"]) for row in assert_same(hudi, location)}
    assert read == {"1": ("b1", None, 1), "2": ("changed", None, 2)}
    first = table.timeline.writes().by_completion()[1].requested
    old = {row["id"]: (row["a"], row["b"]) for row in table.scan(as_of=first).to_arrow().to_pylist()}
    assert old == {"1": (11, "b1"), "2": (2, "b2")}
    table.upsert(pa.table({"id": ["1"], "p": ["p"], "ts": [9], "a": [7]}))
    table.alter().rename_column("bb", "b").execute()
    if kind == "mor":
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    read = {row["id"]: (row["b"], row["a"], row["s"]["xx"]) for row in assert_same(hudi, location)}
    assert read == {"1": ("b1", 7, 1), "2": ("changed", None, 2)}
    assert not table.validate(deep=True).findings


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    process = Hudi(find_older_jar("0.15.0"), tmp_path_factory.mktemp("hudi-0.15"))
    yield process
    process.close()


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_lakehouse_reads_a_table_of_version_6_that_hudi_0_15_evolved(kind: str, older: Hudi, tmp_path: Path) -> None:
    location, name = str(tmp_path / "table"), f"older_{kind}"
    older.sql(
        f"CREATE TABLE {name} (id string, a int, b string, ts bigint, p string) USING hudi PARTITIONED BY (p) "
        f"LOCATION '{location}' TBLPROPERTIES (primaryKey = 'id', preCombineField = 'ts', type = '{kind}')"
    )
    for statement in (
        f"INSERT INTO {name} VALUES ('1', 1, 'b1', 1, 'p'), ('2', 2, 'b2', 1, 'p')",
        f"UPDATE {name} SET a = 11 WHERE id = '1'",
        f"ALTER TABLE {name} RENAME COLUMN b TO bb",
        f"ALTER TABLE {name} DROP COLUMN a",
        f"ALTER TABLE {name} ADD COLUMNS (a int)",
        f"UPDATE {name} SET bb = 'changed' WHERE id = '2'",
    ):
        older.sql(statement, hoodie__compact__inline="false", **ON_READ)
    table = Table.open(location)
    assert table.config.version == 6
    read = {row["id"]: (row["bb"], row["a"]) for row in assert_same(older, location)}
    assert read == {"1": ("b1", None), "2": ("changed", None)}


@pytest.mark.parametrize("kind", KINDS)
def test_hudi_0_15_reads_a_table_of_version_6_whose_columns_lakehouse_changed(
    kind: str, older: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location,
        name="t",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type=kind,
        schema=SCHEMA,
        options={"hoodie.write.table.version": "6"},
    )
    table.upsert(rows("1", "2"))
    table.alter().rename_column("name", "title").drop_column("n").add_column("n", "string").execute()
    table.upsert(pa.table({"id": ["1"], "p": ["p"], "ts": [3], "title": ["t1"], "n": ["x"]}))
    read = {row["id"]: (row["title"], row["n"]) for row in assert_same(older, location)}
    assert read == {"1": ("t1", "x"), "2": ("n2", None)}
