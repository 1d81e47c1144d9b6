"""`lakehouse fleet scan hms://host:port` on a real Hive Metastore: the tables of a sync, of Hudi, and of Hive."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable
from lakehouse.platform.publish.sync import sync_loaded
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable, TableKind
from lakehouse.spec.options.sync import SyncPolicy
from tests.support.fixture_tables import load_fixture_tables

HIVE = "org.apache.hadoop.hive.ql.io.parquet"
PARQUET = Format(
    input_format=f"{HIVE}.MapredParquetInputFormat",
    output_format=f"{HIVE}.MapredParquetOutputFormat",
    serde=f"{HIVE}.serde.ParquetHiveSerDe",
)
TEXT = Format(
    input_format="org.apache.hadoop.mapred.TextInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
    serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
)
LOCK = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
}
OF_HUDI_0_15 = "cow_v6_simplekeygen_hivestyle_no_metafields"


@pytest.fixture(scope="module")
def metastore(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Declare tables in two databases of a metastore, and return its address `host:port`."""
    lake = tmp_path_factory.mktemp("lake")
    orders = Table.create(
        str(lake / "orders"), name="orders", record_key="id", partition_by="day", table_type="MERGE_ON_READ"
    )
    orders.insert(pa.table({"id": ["a", "b"], "day": ["2026-01-01", "2026-01-02"]}))
    with closing(HiveMetastore(hive_uri, timeout_s=30)) as metastore:
        sync_loaded(orders.refresh(), SyncPolicy(database="scan_sales"), metastore)
        metastore.create_database("scan_raw")
        (old,) = (table for table in load_fixture_tables() if table.name == OF_HUDI_0_15)
        # Metastores store the URL that Spark and Hudi declare, not a path.
        places = {"old": f"file:{old.unpack(lake)}", "clicks": f"file://{lake}/clicks", "texts": f"file:{lake}/texts"}
        for day in ("2026-01-01", "2026-01-02"):
            (lake / f"clicks/day={day}").mkdir(parents=True)
            pq.write_table(pa.table({"id": ["a"]}), lake / f"clicks/day={day}/part-0.parquet")
        days = {"clicks": (Column(name="day", type="string"),)}
        for name, place in places.items():
            declared = HiveTable(
                database="scan_raw",
                name=name,
                columns=(Column(name="id", type="string"),),
                partition_columns=days.get(name, ()),
                location=place,
                format=TEXT if name == "texts" else PARQUET,
            )
            assert metastore.create_table(declared)
        partitions = [
            HivePartition(
                values=(day,), location=f"{places['clicks']}/day={day}", format=PARQUET, columns=declared.columns
            )
            for day in ("2026-01-01", "2026-01-02")
        ]
        metastore.add_partitions("scan_raw", "clicks", partitions)
    return hive_uri.removeprefix("thrift://")


def scanned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, ScannedTable]]:
    """Run the command, and return its exit code and the tables by their first name in the metastore."""
    code = main(["fleet", "scan", *words, "--output", "json"])
    result = FleetScan.from_json(capsys.readouterr().out)
    return code, {table.metastore_tables[0]: table for table in result.tables}


def test_tables_of_a_metastore_are_scanned_registered_and_serviced(
    metastore: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    place, options = f"hms://{metastore}", [f"--option={key}={value}" for key, value in LOCK.items()]
    code, tables = scanned(capsys, place)
    assert code == 0
    names = {
        name: (table.kind, table.table, table.version) for name, table in tables.items() if name.startswith("scan")
    }
    assert names == {
        "scan_sales.orders": (TableKind.HUDI, "scan_sales.orders", 9),
        "scan_raw.old": (TableKind.HUDI, "scan_raw.old", 6),
        "scan_raw.clicks": (TableKind.PARQUET, "", None),
        "scan_raw.texts": (TableKind.OTHER, "", None),
    }
    assert tables["scan_sales.orders"].metastore_tables == tuple(
        f"scan_sales.orders{end}" for end in ("", "_ro", "_rt")
    )
    assert (tables["scan_raw.clicks"].partitioned_by, tables["scan_raw.clicks"].partitions) == (("day",), 2)
    with load_catalog() as catalog:
        assert catalog.list_tables() == ()

    # One database first, then all: what is registered stays as it is.
    code, tables = scanned(capsys, f"{place}/scan_sales", "--register", *options)
    assert (code, [table.registered for table in tables.values()]) == (0, ["scan_sales.orders"])
    code, tables = scanned(capsys, place, "--register", *options)
    assert code == 0
    registered = {name: table.registered for name, table in tables.items() if table.registered}
    assert registered == {"scan_sales.orders": "scan_sales.orders", "scan_raw.old": "scan_raw.old"}
    with load_catalog() as catalog:
        entry = catalog.entry("scan_sales.orders")
        assert dict(entry.spec.options) == LOCK
        orders = catalog.load_table("scan_sales.orders")
        orders.upsert(pa.table({"id": ["b"], "day": ["2026-01-02"]}))
        assert orders.services.compaction.run(force=True).totals.files == 1
        assert orders.scan().count() == 2
        (old,) = (table for table in load_fixture_tables() if table.name == OF_HUDI_0_15)
        expected = old.expected()
        assert expected is not None and catalog.load_table("scan_raw.old").scan().count() == expected.num_rows
    assert main(["fleet", "scan", f"{place}/scan_gone"]) != 0
    assert "there is no database 'scan_gone'" in capsys.readouterr().err
