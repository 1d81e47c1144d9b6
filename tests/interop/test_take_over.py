"""The page "Take over an existing Hudi lake", as written, on 30 tables that Apache Hudi 0.15 and Hudi 1.2 wrote."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse import Table
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.fleet_scan.register import register_tables
from lakehouse.platform.fleet_scan.scan import ScanRequest, scan
from lakehouse.spec.contracts.fleet_scan import ScannedTable
from tests.support.doc_blocks import DOCS, PageRun, read_page
from tests.support.hudi import Hudi, find_jar, find_older_jar
from tests.support.hudi_fleet import OF_0_15, OF_1_2, FleetTable, build

pytestmark = pytest.mark.jvm

PAGE = "docs/how-to/take-over-a-hudi-lake.md"
#: Tables that the page names.
NAMED = ("sales/orders", "sales/visits", "sales/carts", "risk/ledger")
FLEET = (*OF_0_15, *OF_1_2)
#: Services of a night.
NIGHT = ("compaction", "clustering", "clean", "archive")
#: A lake that an earlier run wrote, with its sources beside it; it is not changed.
BUILT = os.environ.get("LAKEHOUSE_HUDI_FLEET", "")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the lake with one process of each release."""
    if BUILT:
        return Path(BUILT)
    lake = tmp_path_factory.mktemp("fleet") / "lake"
    for jar, tables in ((find_older_jar("0.15.0"), OF_0_15), (find_jar(), OF_1_2)):
        process = Hudi(jar, tmp_path_factory.mktemp("hudi"))
        try:
            build(lake, process, tables)
        finally:
            process.close()
    return lake


@pytest.fixture(scope="module")
def scanned(fleet: Path) -> dict[str, ScannedTable]:
    """The tables of the lake by their paths."""
    place = str(fleet)
    return {table.location.removeprefix(f"{place}/"): table for table in scan(ScanRequest(place=place)).tables}


@pytest.mark.parametrize("table", FLEET, ids=lambda table: str(table.path))
def test_scan_describes_tables_whose_rows_are_read(
    table: FleetTable, fleet: Path, scanned: dict[str, ScannedTable]
) -> None:
    described = scanned[table.path]
    assert (described.version, described.readable) == (table.version, True)
    assert described.type == table.writer_options["hoodie.datasource.write.table.type"]
    opened = Table.open(str(fleet / table.path))
    rows = opened.scan(["id", "v"]).to_arrow()
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == table.expected
    assert opened.validate(deep=True).corrupt == ()


@pytest.mark.parametrize("table", FLEET, ids=lambda table: str(table.path))
def test_write_of_a_table_works_or_is_refused_as_the_scan_says(
    table: FleetTable, fleet: Path, scanned: dict[str, ScannedTable], tmp_path: Path
) -> None:
    shutil.copytree(fleet / table.path, tmp_path / "t")
    opened = Table.open(str(tmp_path / "t"))
    rows = opened.scan().to_arrow().slice(0, 1)
    described = scanned[table.path]
    may_write = described.writable and not any(r.operation == "register" for r in described.refusals)
    try:
        opened.upsert(rows.select([name for name in rows.column_names if not name.startswith("_hoodie")]))
    except LakehouseError as error:
        assert not may_write, error
    else:
        assert may_write
        assert opened.scan().count() == len(table.expected)
        assert opened.validate(deep=True).corrupt == ()


def test_steps_of_the_page_run_on_the_lake(fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(fleet, tmp_path / "lake")
    page = read_page(PAGE, (DOCS.parent / PAGE).read_text(encoding="utf-8"))
    # Setup blocks make a lake where there is none.
    hidden = [block for block in page.blocks if block.code.startswith("from pathlib import Path\n")]
    assert len(hidden) == 1
    run = PageRun(tmp_path, monkeypatch)
    run.run(replace(page, blocks=tuple(block for block in page.blocks if block not in hidden)))
    assert set(run.executed) == page.runnable - {f"{page.path}:{hidden[0].line}"}
    assert {table.path for table in FLEET} >= set(NAMED)
    for table in FLEET:
        rows = Table.open(str(tmp_path / "lake" / table.path)).scan(["id", "v"]).to_arrow()
        assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == table.expected, table.path


def test_table_that_the_scan_left_out_is_registered_with_the_index_of_its_jobs(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet / "risk/ledger", tmp_path / "t")
    rows = Table.open(str(tmp_path / "t")).scan().to_arrow().slice(0, 2)
    changed = rows.select([name for name in rows.column_names if not name.startswith("_hoodie")])
    with pytest.raises(UserError, match="file groups are buckets"):
        Table.open(str(tmp_path / "t")).upsert(changed)
    bucket = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    opened = Table.open(str(tmp_path / "t"), options=bucket)
    opened.upsert(changed)
    ledger = next(table for table in FLEET if table.path == "risk/ledger")
    assert opened.scan().count() == len(ledger.expected)


def test_rows_stay_the_same_for_hudi_after_the_first_serviced_night(fleet: Path, hudi: Hudi, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "lake")
    mode = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}
    place, runs = str(tmp_path / "lake"), 0
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        tables = register_tables(catalog, scan(ScanRequest(place=place)), author="ann", options=mode).tables
        for table in tables:
            wanted = {service for service in NIGHT if service in table.services} if table.registered else set()
            for service in sorted(name for name in wanted if catalog.settings(table.registered, name).enabled):
                catalog.load_table(table.registered).services.named(service).run(force=True)
                runs += 1
    assert runs > len(FLEET)
    for table in FLEET:
        location = f"{place}/{table.path}"
        for rows in (Table.open(location).scan(["id", "v"]).to_arrow(), hudi.collect(location, ["id", "v"], {})):
            assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == table.expected, table.path
            assert rows.num_rows == len(table.expected), table.path
        assert Table.open(location).validate(deep=True).corrupt == (), table.path
