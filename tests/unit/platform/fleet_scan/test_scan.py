"""Scans of tables that Hudi wrote: support, proposals and registration."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.core.operations.services.clean import last_clean
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.scans import record_scan, recorded_scans, recorded_tables
from lakehouse.platform.fleet_scan.examine import bucket_numbers
from lakehouse.platform.fleet_scan.proposals import proposed_names
from lakehouse.platform.fleet_scan.register import register_tables
from lakehouse.platform.fleet_scan.scan import ScanRequest, scan
from lakehouse.platform.services.registry import table_service
from lakehouse.platform.services.support import table_support
from lakehouse.spec.contracts.fleet_scan import ProposedPolicy, ScannedTable, TableKind
from lakehouse.spec.table.services import SERVICES
from tests.support.fixture_tables import FixtureTable, load_fixture_tables
from tests.support.shared import fixtures

V6 = (
    "cow_v6_h015_cdc",
    "cow_v6_h015_mdt_services",
    "mor_v6_h015_archived",
    "mor_v6_h015_bucket_index",
    "mor_v6_h015_pending_compaction",
)
TABLES = load_fixture_tables()
#: Services that are for other tables, or that no table of the fixtures declares.
UNDECLARED = {"sync", "export"}


def unpack(name: str, place: Path) -> Path:
    with zipfile.ZipFile(fixtures(f"hudi_v6/{name}.zip")) as archive:
        archive.extractall(place)
    return place / name


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with tables of version 3, 6 and 9 in folders of two teams, a Parquet folder and a Delta table."""
    for name in V6:
        unpack(name, tmp_path / "lake/sales")
    wanted = {"cow_v3_stock_ticks", "v9_txns_cow_complex_meta", "v9_lance_nonpartitioned"}
    for table in TABLES:
        if table.name in wanted or table.entry["zip"] in {f"{name}.zip" for name in wanted}:
            table.unpack(tmp_path / "lake/risk")
    for path in ("lake/raw/day=2026-01-01/a.parquet", "lake/other/_delta_log/0.json"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"x" * 10)
    return tmp_path / "lake"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(f"sqlite:///{tmp_path}/catalog.db")


def scanned(place: Path, **more: object) -> dict[str, ScannedTable]:
    tables = scan(ScanRequest(place=str(place), **more)).tables  # type: ignore[arg-type]
    return {table.location.removeprefix(f"{place}/"): table for table in tables}


def test_scan_reports_versions_features_and_support(lake: Path) -> None:
    tables = scanned(lake)
    archived = tables["sales/mor_v6_h015_archived"]
    assert (archived.kind, archived.version, archived.type) == (TableKind.HUDI, 6, "MERGE_ON_READ")
    assert archived.readable and archived.writable and "compaction" in archived.services
    features = {feature.feature: feature.value for feature in archived.features}
    assert features["payload class"] == "OverwriteWithLatestAvroPayload"
    assert features["key generator"] == "SimpleKeyGenerator"
    assert archived.table == "sales.arch_15_M"
    metadata = tables["sales/cow_v6_h015_mdt_services"]
    assert dict((f.feature, f.value) for f in metadata.features)["metadata table"].startswith("bloom_filters,")
    pending = {f.feature: f.value for f in tables["sales/mor_v6_h015_pending_compaction"].features}
    assert "1 compaction" in pending["pending instants"]
    assert {f.feature: f.value for f in tables["sales/cow_v6_h015_cdc"].features}["CDC"] == "data_before_after"


def test_scan_names_other_formats_and_unsupported_tables(lake: Path) -> None:
    tables = scanned(lake)
    assert tables["other"].kind is TableKind.DELTA
    assert tables["other"].next[0].startswith("skipped: Delta tables are not read")
    raw = tables["raw"]
    assert (raw.kind, raw.partitioned_by, raw.partitions) == (TableKind.PARQUET, ("day",), 1)
    assert raw.next == (f"lakehouse spec suggest {lake}/raw",)
    (old,) = [table for table in tables.values() if table.version == 3]
    assert not old.readable and old.table == ""
    assert "table version 3 is not supported" in old.refusals[0].reason
    assert scanned(lake, sizes=True)["raw"].bytes == 10


@pytest.mark.parametrize("table", [t for t in TABLES if t.is_supported], ids=lambda table: str(table.name))
def test_support_equals_the_refusals_of_later_calls(table: FixtureTable, tmp_path: Path) -> None:
    _require_equal_refusals(Table.open(str(table.unpack(tmp_path))))


@pytest.mark.parametrize("name", V6)
def test_support_of_version_6_equals_the_refusals_of_later_calls(name: str, tmp_path: Path) -> None:
    _require_equal_refusals(Table.open(str(unpack(name, tmp_path))))


def _require_equal_refusals(table: Table) -> None:
    services = table.services_as_loaded
    support = table_support(services.table, services.policies)
    assert support.is_readable
    assert table.scan().to_arrow().num_rows >= 0
    for name in [*support.services, *support.refused_services]:
        if name in UNDECLARED:
            continue
        try:
            table_service(services, name).plan(force=True)
            refusal = ""
        except LakehouseError as error:
            refusal = error.message
        assert bool(refusal) == (name in support.refusals), (name, refusal)
    assert set(support.services) | set(support.refused_services) <= set(SERVICES)


def test_proposed_policies_keep_the_services_of_today(lake: Path) -> None:
    tables = scanned(lake)
    archived = {policy.service: policy for policy in tables["sales/mor_v6_h015_archived"].policies}
    assert archived["clean"].settings == {"enabled": False}
    assert "turn it off in the program that runs it" in archived["clean"].reason
    assert archived["compaction"].settings == {"enabled": False}
    assert tables["sales/mor_v6_h015_pending_compaction"].policies[0].service == "compaction"


def test_table_with_many_writes_and_no_clean_keeps_its_versions(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "lake/t"), name="t", record_key="id")
    for number in range(12):
        table.upsert(pa.table({"id": [1], "v": [number]}))
    (clean,) = scanned(tmp_path / "lake")["t"].policies
    assert (clean.service, clean.settings) == ("clean", {"enabled": False})
    assert "no clean is on the timeline with 12 writes" in clean.reason


def aged(place: Path, writes: int) -> Table:
    """Create a table of version 6 with one obsolete file, whose last commit is repeated under later times."""
    table = Table.create(str(place), name="t", record_key="id", options={"hoodie.write.table.version": "6"})
    table.insert(pa.table({"id": [1]}))
    table.upsert(pa.table({"id": [1]}))
    first = max(int(commit.name.partition(".")[0]) for commit in place.glob(".hoodie/*.commit"))
    for number in range(1, writes - 1):
        for name in ("commit.requested", "inflight", "commit"):
            data = (place / f".hoodie/{first}.{name}").read_bytes()
            (place / f".hoodie/{first + number}.{name}").write_bytes(data)
    return Table.open(str(place))


def proposed(place: Path) -> dict[str, ProposedPolicy]:
    (table,) = scan(ScanRequest(place=str(place))).tables
    return {policy.service: policy for policy in table.policies}


def test_retention_of_a_clean_that_is_longer_than_the_default_is_proposed(tmp_path: Path) -> None:
    table = aged(tmp_path / "t", 20)
    table.with_options({"hoodie.clean.commits.retained": "15"}).services.clean.run(force=True)
    times = [instant.requested for instant in table.timeline.writes()]
    last = last_clean(Table.open(table.location).loaded)
    retained = 0 if last is None else sum(time >= (last.earliest or "") for time in times)
    assert 10 < retained < 20
    clean = proposed(tmp_path)["clean"]
    assert clean.settings == {"enabled": False, "commits_retained": retained}
    assert f"the last clean kept the newest {retained} commits readable" in clean.reason


def test_retention_of_a_clean_that_is_shorter_than_the_default_is_not_proposed(tmp_path: Path) -> None:
    table = aged(tmp_path / "t", 8)
    table.with_options({"hoodie.clean.commits.retained": "2"}).services.clean.run(force=True)
    assert proposed(tmp_path)["clean"].settings == {"enabled": False}


def test_long_timeline_is_not_archived_to_fewer_commits_than_today(tmp_path: Path) -> None:
    aged(tmp_path / "t", 35)
    policies = proposed(tmp_path)
    assert policies["archive"].settings == {"min_commits": 35, "max_commits": 45}
    assert policies["archive"].reason == "the timeline has 35 writes today"
    assert policies["clean"].settings == {"enabled": False}


def test_timeline_of_usual_length_has_no_archive_policy(tmp_path: Path) -> None:
    aged(tmp_path / "t", 9)
    assert proposed(tmp_path) == {}


def test_policies_of_a_long_timeline_are_accepted_by_the_catalog(tmp_path: Path, catalog: Catalog) -> None:
    table = aged(tmp_path / "lake/t", 35)
    table.with_options({"hoodie.clean.commits.retained": "33"}).services.clean.run(force=True)
    register_tables(catalog, scan(ScanRequest(place=str(tmp_path / "lake"))), author="ann")
    (entry,) = catalog.list_tables()
    archive = catalog.settings(entry.identifier, "archive")
    assert archive.enabled
    assert archive.options == {"hoodie.keep.min.commits": "35", "hoodie.keep.max.commits": "45"}


def test_archive_that_another_program_runs_stays_disabled(lake: Path) -> None:
    archive = {policy.service: policy for policy in scanned(lake)["sales/mor_v6_h015_archived"].policies}["archive"]
    assert archive.settings == {"enabled": False}
    assert "another program archives the timeline to .hoodie/archived" in archive.reason


def test_table_whose_buckets_are_not_in_its_properties_is_not_registered_without_options(
    lake: Path, catalog: Catalog
) -> None:
    location = lake / "sales/mor_v6_h015_bucket_index"
    raw = (location / ".hoodie/hoodie.properties").read_text()
    assert "hoodie.index.type" not in raw
    bucket = scanned(lake)["sales/mor_v6_h015_bucket_index"]
    assert bucket.readable and bucket.table == ""
    assert "lakehouse table register --option hoodie.index.type=BUCKET" in bucket.next[0]
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
    table = catalog.register_table("sales.bucket", str(location), options=options)
    assert table.services_as_loaded.policies.index.buckets == 4
    assert catalog.entry("sales.bucket").spec.options == options
    with pytest.raises(UserError, match=r"hoodie\.indx\.type"):
        catalog.register_table("sales.wrong", str(lake / "sales/cow_v6_h015_cdc"), options={"hoodie.indx.type": "x"})
    assert [entry.identifier for entry in catalog.list_tables()] == ["sales.bucket"]


@pytest.mark.parametrize(("digits", "buckets"), [("00000003", (3,)), ("00099999", (99_999,)), ("12345678", ())])
def test_random_file_id_that_begins_with_digits_is_no_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: str, buckets: tuple[int, ...]
) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: f"{digits}-8c1f-4d2a-9b3e-5f6a7b8c9d0e")
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="ts")
    table.insert(pa.table({"id": ["a"], "ts": [1]}))
    monkeypatch.undo()
    assert bucket_numbers(Table.open(table.location).services_as_loaded.table) == buckets
    (report,) = scanned(tmp_path).values()
    assert bool(report.refusals) == bool(buckets)


def test_options_of_a_scan_are_stored_in_each_spec(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    mode = "hoodie.write.concurrency.mode=optimistic_concurrency_control"
    assert main(["fleet", "scan", str(lake), "--option", mode]) == UserError.exit_code
    assert "--option is for the tables that --register registers" in capsys.readouterr().err
    assert main(["fleet", "scan", str(lake), "--register", "--option", mode]) == 0
    with load_catalog() as catalog:
        assert catalog.load_table("sales.cdc_15").services_as_loaded.policies.transaction.many_writers


def test_registration_is_repeatable_and_enters_policies(lake: Path, catalog: Catalog) -> None:
    first = register_tables(catalog, scan(ScanRequest(place=str(lake))), author="ann")
    names = {table.registered for table in first.tables if table.registered}
    assert "sales.arch_15_M" in names
    assert {entry.identifier for entry in catalog.list_tables()} == names
    assert not catalog.settings("sales.arch_15_M", "clean").enabled
    assert catalog.settings("sales.cdc_15", "clean").enabled
    catalog.set_policy("sales.arch_15_M", "clean", {"enabled": True})

    registered = {entry.identifier: entry.location for entry in catalog.list_tables()}
    again = register_tables(catalog, scan(ScanRequest(place=str(lake)), registered), author="ann")
    assert [table.registered for table in again.tables] == [table.registered for table in first.tables]
    assert catalog.settings("sales.arch_15_M", "clean").enabled
    assert not [table.problem for table in again.tables if table.problem]


def test_registration_continues_after_a_crash(lake: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    register, calls = catalog.register_table, []

    def crash(*args: object, **more: object) -> Table:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return register(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "register_table", crash)
    with pytest.raises(KeyboardInterrupt):
        register_tables(catalog, scan(ScanRequest(place=str(lake))), author="ann")
    monkeypatch.undo()
    registered = {entry.identifier: entry.location for entry in catalog.list_tables()}
    assert len(registered) == 2
    whole = register_tables(catalog, scan(ScanRequest(place=str(lake)), registered), author="ann")
    assert len(catalog.list_tables()) == sum(bool(table.table) for table in whole.tables) > 2


def test_names_of_equal_tables_differ() -> None:
    places = {"/l/a/orders": "orders", "/l/b/orders": "orders", "/l/b/copy": "orders", "/l/top": "x.top"}
    assert proposed_names(places, "/l", "", {}) == {
        "/l/a/orders": "a.orders",
        "/l/b/copy": "b.orders",
        "/l/b/orders": "b.b_orders",
        "/l/top": "l.top",
    }
    taken = {"s.orders": "/elsewhere", "s.kept": "/l/b/copy"}
    assert proposed_names(places, "/l", "s", taken) == {
        "/l/a/orders": "s.a_orders",
        "/l/b/copy": "s.kept",
        "/l/b/orders": "s.b_orders",
        "/l/top": "s.top",
    }


def test_recorded_scan_is_replaced_and_shows_registered_tables(lake: Path, catalog: Catalog) -> None:
    result = scan(ScanRequest(place=str(lake)))
    record_scan(catalog.database, result, "ann")
    record_scan(catalog.database, result, "bob")
    (recorded,) = recorded_scans(catalog.database)
    assert (recorded.place, recorded.author, recorded.tables) == (str(lake), "bob", len(result.tables))
    assert recorded_tables(catalog.database, str(lake)) == result.tables
    name = next(table.table for table in result.tables if table.table)
    location = next(table.location for table in result.tables if table.table)
    catalog.register_table(name, location)
    shown = {table.location: table.registered for table in recorded_tables(catalog.database, str(lake))}
    assert shown[location] == name and sum(map(bool, shown.values())) == 1


def test_command_prints_and_registers(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    assert main(["fleet", "scan", str(lake), "--register", "--namespace", "old", "--output", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {table["registered"] for table in document["tables"]} >= {"old.arch_15_M", "old.cdc_15", ""}
    assert main(["fleet", "scan", str(lake)]) == 0
    text = capsys.readouterr().out
    assert "an index of a table of version 6 is not built while writers continue" in text
    assert main(["table", "register", "--table", "x.y", "--location", f"{lake}/none"]) != 0
