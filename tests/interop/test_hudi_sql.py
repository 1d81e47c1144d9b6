"""Apache Hudi's SQL writes to tables of lakehouse, and lakehouse writes to them afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, make_table, row

pytestmark = pytest.mark.jvm

SHAPES = {
    "simple": Shape(keys="simple", url_encode=False),
    "simple-hive-8": Shape(keys="simple", version=8, hive_style=True, url_encode=False),
    "flat": Shape(keys="non_partition"),
    "complex": Shape(keys="complex", hive_style=True, url_encode=False),
    "complex-single": Shape(keys="complex_single", url_encode=False),
    "bucket": Shape(keys="simple", index="BUCKET", url_encode=False),
}
# By default Hudi upgrades a table on write; these settings keep version 8.
STAY_AT_8 = {"hoodie__write__table__version": "8", "hoodie__write__auto__upgrade": "false"}
# Hudi needs most of the time to build a metadata table, so only one shape of each version has one.
WITHOUT_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
WITH_METADATA_TABLE = ("simple", "simple-hive-8")


def on_disk(shape: Shape, directory: Path) -> Table:
    return make_table(shape, env=Env(storage=open_storage(str(directory / "table"))))


def values(table: Table) -> dict[str, str | None]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


@pytest.mark.parametrize("name", SHAPES)
def test_hudi_sql_and_lakehouse_write_a_table_in_turn(name: str, hudi: Hudi, tmp_path: Path) -> None:
    shape = SHAPES[name]
    table = on_disk(shape, tmp_path)
    settings = STAY_AT_8 if shape.version == 8 else {}
    settings = settings if name in WITH_METADATA_TABLE else settings | WITHOUT_METADATA_TABLE

    def sql(text: str) -> None:
        hudi.sql(text, table=table.location, **settings)

    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v="ours") for i in range(6)]))
    columns = "(id, region, at, ts, v, amount, _hoodie_is_deleted, p)"
    sql(f"INSERT INTO {{table}} {columns} VALUES ('i1', 'eu', 0L, 1L, 'inserted', 1.5D, false, 'a')")
    sql("UPDATE {table} SET v = 'updated', ts = 2 WHERE id = 'k0'")
    sql("DELETE FROM {table} WHERE id = 'k1'")
    sql(
        "MERGE INTO {table} t USING (SELECT 'k2' id, 'eu' region, 'a' p, 9L ts, 'merged' v UNION ALL "
        "SELECT 'm1', 'eu', 'b', 9L, 'merged') s ON t.id = s.id AND t.region = s.region AND t.p = s.p "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v, t.ts = s.ts WHEN NOT MATCHED THEN INSERT (id, region, p, at, ts, v, "
        "amount, _hoodie_is_deleted) VALUES (s.id, s.region, s.p, 0L, s.ts, s.v, 0.0D, false)"
    )
    expected: dict[str, str | None] = {
        **{"i1": "inserted", "k0": "updated", "k2": "merged", "m1": "merged"},
        **{f"k{i}": "ours" for i in (3, 4, 5)},
    }
    assert values(table) == expected
    assert bool(table.config.metadata_partitions) == (name in WITH_METADATA_TABLE)
    changes = [row(key, p=p, ts=10, v="ours again") for key, p in (("i1", "a"), ("k0", "a"), ("m1", "b"), ("n1", "b"))]
    table.upsert(batch(changes))
    key = "_hoodie_record_key"
    gone = [k for k in table.scan([key]).to_arrow().column(key).to_pylist() if "k2" in k]
    table.delete(gone)
    del expected["k2"]
    expected.update({r["id"]: "ours again" for r in changes})
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)
    sql("UPDATE {table} SET v = 'and again', ts = 11 WHERE id in ('n1', 'k0')")
    assert values(table) == expected | {"n1": "and again", "k0": "and again"}
    assert_hudi_reads_the_same(hudi, table)
    assert table.refresh().config.version == shape.version
