"""Scans of a metastore: tables of Hudi, partitioned Parquet, other formats, and locations that cannot be listed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import Table, load_catalog
from lakehouse.errors import UserError
from lakehouse.platform.fleet_scan.metastore_tables import MetastorePlace, metastore_place, scan_metastore
from lakehouse.platform.fleet_scan.register import register_tables
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable
from lakehouse.spec.contracts.fleet_scan import ScannedTable, TableKind

PARQUET = Format(
    input_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat", output_format="o", serde="s"
)
ORC = Format(input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat", output_format="o", serde="s")
DAY = (Column(name="day", type="string"),)
PLACE = "hms://meta:9083"


def declare(metastore: MemoryMetastore, name: str, location: str, *, form: Format = PARQUET, days: int = 0) -> None:
    """Declare a table `database.name` with partitions of days in folders elsewhere."""
    database, _, plain = name.partition(".")
    metastore.create_database(database)
    columns = (Column(name="id", type="string"),)
    table = HiveTable(
        database=database,
        name=plain,
        columns=columns,
        partition_columns=DAY if days else (),
        location=location,
        format=form,
    )
    assert metastore.create_table(table)
    partitions = [
        HivePartition(values=(f"2026-01-0{n + 1}",), location=f"{location}-{n}", format=form, columns=columns)
        for n in range(days)
    ]
    metastore.add_partitions(database, plain, partitions)


@pytest.fixture
def metastore(tmp_path: Path) -> MemoryMetastore:
    """A metastore with one merge-on-read table under two names, Parquet with partitions, ORC and a lost location."""
    made = MemoryMetastore()
    orders = Table.create(str(tmp_path / "orders"), name="o", record_key="id", table_type="MERGE_ON_READ")
    orders.insert(pa.table({"id": ["a"]}))
    for suffix in ("ro", "rt"):
        declare(made, f"sales.orders_{suffix}", str(tmp_path / "orders"))
    (tmp_path / "raw/day=2026-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "raw/day=2026-01-01/a.parquet")
    declare(made, "landing.raw", str(tmp_path / "raw"), days=1)
    (tmp_path / "far").mkdir()
    declare(made, "landing.far", str(tmp_path / "far"), days=2)
    (tmp_path / "orc").mkdir()
    declare(made, "landing.orc", str(tmp_path / "orc"), form=ORC)
    declare(made, "landing.lost", "s4://nowhere/lost")
    return made


def scanned(metastore: MemoryMetastore, place: str = PLACE) -> dict[str, ScannedTable]:
    tables = scan_metastore(place, metastore).tables
    return {table.metastore_tables[0]: table for table in tables}


def test_tables_of_all_databases_are_described(metastore: MemoryMetastore) -> None:
    tables = scanned(metastore)
    assert sorted(tables) == ["landing.far", "landing.lost", "landing.orc", "landing.raw", "sales.orders_ro"]
    orders = tables["sales.orders_ro"]
    assert (orders.kind, orders.table, orders.writable) == (TableKind.HUDI, "sales.orders", True)
    assert orders.metastore_tables == ("sales.orders_ro", "sales.orders_rt")
    raw = tables["landing.raw"]
    assert (raw.kind, raw.partitioned_by, raw.partitions) == (TableKind.PARQUET, ("day",), 1)
    assert raw.next[0].startswith("lakehouse spec suggest ")
    # The partitions of this table are in other folders.
    assert (tables["landing.far"].kind, tables["landing.far"].partitions) == (TableKind.PARQUET, 2)
    assert tables["landing.orc"].kind is TableKind.OTHER
    assert "files of OrcInputFormat are not read" in tables["landing.orc"].refusals[0].reason
    assert tables["landing.lost"].kind is TableKind.UNREADABLE and "s4" in tables["landing.lost"].problem


def test_place_may_name_a_database_and_several_servers(metastore: MemoryMetastore) -> None:
    assert metastore_place("hms://a,b:1/sales") == MetastorePlace(uris="thrift://a:9083,thrift://b:1", database="sales")
    assert list(scanned(metastore, f"{PLACE}/sales")) == ["sales.orders_ro"]
    with pytest.raises(UserError, match=r"no database 'gone'; databases are default, landing, sales"):
        scan_metastore(f"{PLACE}/gone", metastore)
    for wrong in ("hms://", "hms:///sales", "hms://a/b/c"):
        with pytest.raises(UserError, match="is not the address of a metastore"):
            metastore_place(wrong)


def test_readable_tables_are_registered_once_under_their_names(metastore: MemoryMetastore, tmp_path: Path) -> None:
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        result = register_tables(catalog, scan_metastore(PLACE, metastore), author="ada")
        assert [table.registered for table in result.tables if table.registered] == ["sales.orders"]
        assert catalog.load_table("sales.orders").scan().count() == 1
        locations = {entry.identifier: entry.location for entry in catalog.registered().values()}
        again = scan_metastore(PLACE, metastore, locations)
    assert [table.registered for table in again.tables if table.registered] == ["sales.orders"]
