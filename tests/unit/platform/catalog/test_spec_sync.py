"""Synchronisation of spec files with the catalog: versions, authors, warnings about drift."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from lakehouse import Table, load_catalog
from lakehouse.cli import ingest as ingest_command
from lakehouse.cli.main import main
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database, _config
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.publish import publication_job
from lakehouse.spec.contracts.job import IngestReport, JobStatus, parse_report
from lakehouse.spec.table.changes import changes_text, spec_changes
from lakehouse.spec.table.folder import read_specs, spec_paths
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import files_of

CLEAN = "services: {clean: {commits_retained: %s}}\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a spec file and returns its path."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    for name in ("LAKEHOUSE_SPECS", "LAKEHOUSE_SYNC_SPECS", "LAKEHOUSE_AUTHOR", "LAKEHOUSE_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "specs"
    folder.mkdir()

    def write_spec(name: str = "orders", more: str = "", table: str = "", location: str = "${LAKE}/orders") -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(
            f"table: {table or f'sales.{name}'}\nlocation: {location}\nrecord_key: id\ntype: MERGE_ON_READ\n{more}",
            encoding="utf-8",
        )
        return path

    return write_spec


@pytest.fixture
def catalog(write: Write) -> Iterator[Catalog]:
    with load_catalog() as opened:
        yield opened


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Run a command and return its JSON output."""
    capsys.readouterr()
    assert main([*words, "--output", "json"]) == code
    return json.loads(capsys.readouterr().out)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {row["table"]: row["state"] for row in found["specs"]}


def test_edited_spec_is_reported_as_drift_until_synchronised(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = str(write(more=CLEAN % 10).parent)
    assert states(run(capsys, "table", "drift", "--specs", specs)) == {"sales.orders": "not_in_catalog"}
    assert states(run(capsys, "table", "sync", "--specs", specs, "--author", "ada")) == {"sales.orders": "entered"}
    assert states(run(capsys, "table", "drift")) == {"sales.orders": "in_force"}

    path = write(more=CLEAN % 5)
    change = ["services.clean.commits_retained: 10 -> 5"]
    (row,) = run(capsys, "table", "drift")["specs"]
    assert (row["state"], row["spec_version"], row["changes"], row["file"]) == ("differs", 1, change, str(path))
    (row,) = run(capsys, "table", "list")["tables"]
    assert (row["spec_version"], row["author"]) == (1, "ada")
    assert change[0] in row["drift"]
    explained = run(capsys, "services", "explain", "--table", "sales.orders", "--service", "clean")
    assert explained["spec"]["spec_version"] == 1 and change[0] in explained["spec"]["drift"]
    assert explained["services"]["clean"]["settings"]["hoodie.clean.commits.retained"] == "10"
    (row,) = run(capsys, "table", "sync", "--specs", specs, "--dry-run")["specs"]
    assert (row["state"], catalog.entry("sales.orders").spec_version) == ("differs", 1)

    (row,) = run(capsys, "table", "sync", "--specs", specs, "--author", "bo")["specs"]
    assert (row["state"], row["spec_version"], row["changes"]) == ("put_in_force", 2, change)
    assert run(capsys, "table", "list")["tables"][0]["drift"] is None
    assert catalog.settings("sales.orders", "clean").options == {"hoodie.clean.commits.retained": "5"}
    first, second = run(capsys, "table", "history", "--table", "sales.orders")["versions"]
    assert (first["author"], first["changes"]) == ("ada", [])
    assert (second["author"], second["changes"], second["file"]) == ("bo", change, str(path))
    assert states(run(capsys, "table", "sync", "--specs", specs)) == {"sales.orders": "in_force"}
    assert catalog.entry("sales.orders").spec_version == 2


def test_catalog_stores_variables_of_a_spec_unresolved(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(more="ingest: {path: '${LAKE}/in'}\n")
    run(capsys, "table", "sync", "--specs", str(path.parent))
    with catalog.database.engine.connect() as connection:
        stored = connection.execute(sa.text("SELECT document FROM lakehouse_specs")).scalar_one()
    document = json.loads(stored)
    assert (document["location"], document["ingest"]["path"]) == ("${LAKE}/orders", "${LAKE}/in")
    entry = catalog.entry("sales.orders")
    assert entry.location == str(path.parents[1] / "lake" / "orders")
    # The same location written without variables is not a change.
    write(more="ingest: {path: '${LAKE}/in'}\n", location=entry.location)
    assert states(run(capsys, "table", "sync", "--specs", str(path.parent))) == {"sales.orders": "in_force"}


def test_refused_spec_file_has_a_reason_and_the_previous_version_stays_in_force(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = str(write(more=CLEAN % 10).parent)
    write("items", location="${LAKE}/items")
    run(capsys, "table", "sync", "--specs", specs)
    write("items", location="${LAKE}/elsewhere")
    write(more=CLEAN % "many")
    rows = {row["table"]: row for row in run(capsys, "table", "sync", "--specs", specs, code=64)["specs"]}
    assert "is at" in rows["sales.items"]["problem"]
    assert "many" in rows["sales.orders"]["problem"]
    assert {row["state"] for row in rows.values()} == {"refused"}
    assert {entry.spec_version for entry in catalog.list_tables()} == {1}
    write("items", location="${NOWHERE}/items")
    write(more=CLEAN % 7)
    write("again", table="sales.orders")
    rows = {row["table"]: row for row in run(capsys, "table", "sync", "--specs", specs, code=64)["specs"]}
    assert "NOWHERE" in rows["sales.items"]["problem"]
    assert "is declared in" in rows["sales.orders"]["problem"]


def fill(catalog: Catalog) -> Table:
    table = catalog.load_table("sales.orders")
    for value in range(4):
        table.upsert(pa.table({"id": ["a", "b"], "v": [value] * 2}))
    return table


def test_job_of_airflow_puts_the_edited_file_in_force_first(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    less, more = (f"services: {{compaction: {{max_delta_commits: {n}}}}}\n" for n in (3, 50))
    specs = str(write(more=more).parent)
    run(capsys, "table", "sync", "--specs", specs, "--author", "ada")
    fill(catalog)
    path = write(more=less)
    due = ("services", "due", "--service", "compaction")

    # A run by hand puts no file in force; its decision names the differences.
    (decision,) = run(capsys, *due)["decisions"]
    assert not decision["due"]
    assert (
        f"spec file {path} is not in force, version 1 is: services.compaction.max_delta_commits" in decision["reason"]
    )
    report = tmp_path / "report.json"
    assert main(["compaction", "run", "--table", "sales.orders", "--report", str(report)]) == 0
    reported = parse_report(report.read_text())
    assert reported.status is JobStatus.NOTHING_TO_DO
    assert "is not in force, version 1 is" in reported.warning

    monkeypatch.setenv("LAKEHOUSE_SYNC_SPECS", specs)
    monkeypatch.setenv("LAKEHOUSE_AUTHOR", "ada (Airflow, services.compaction/manual)")
    assert main(["compaction", "run", "--table", "sales.orders", "--report", str(report)]) == 0
    reported = parse_report(report.read_text())
    assert (reported.status, reported.warning) == (JobStatus.COMMITTED, "")
    history = catalog.spec_history("sales.orders")
    assert [(v.version, v.author) for v in history] == [(1, "ada"), (2, "ada (Airflow, services.compaction/manual)")]

    write(more=more)
    (decision,) = run(capsys, *due)["decisions"]
    assert "is not in force" not in decision["reason"]
    entry = catalog.entry("sales.orders")
    newest = catalog.history.decisions(entry.id, "compaction")[0]
    assert (entry.spec_version, newest.inputs["spec_version"]) == (3, 3)


def test_ingestion_by_table_name_uses_the_edited_spec(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = str(write(more="ingest: {path: before}\n").parent)
    run(capsys, "table", "sync", "--specs", specs)
    write(more="ingest: {path: after}\n")
    seen: list[TableSpec] = []
    monkeypatch.chdir(Path(specs).parent)
    for landing in ("before", "after"):
        Path(landing).mkdir()
        # A run without files does not start Spark.
        Path(landing, "a.json").write_text('{"id": "1"}')

    def ingested(session: object, spec: TableSpec, *args: object, **kwargs: object) -> IngestReport:
        seen.append(spec)
        return IngestReport(status=JobStatus.NOTHING_TO_DO, table=spec.table)

    monkeypatch.setattr(ingest_command, "job_session", lambda name: None)
    monkeypatch.setattr(ingest_command, "run_ingest", ingested)
    report = Path(specs).parent / "report.json"
    assert main(["ingest", "run", "--table", "sales.orders", "--report", str(report)]) == 0
    assert 'ingest.path: "before" -> "after"' in parse_report(report.read_text()).warning
    monkeypatch.setenv("LAKEHOUSE_SYNC_SPECS", os.pathsep.join((specs, f"{specs}-nowhere")))
    assert main(["ingest", "run", "--table", "sales.orders"]) == 0
    assert [files_of(spec.ingest).path for spec in seen] == ["before", "after"]
    assert {spec.location for spec in seen} == {catalog.entry("sales.orders").location}
    assert [version.version for version in catalog.spec_history("sales.orders")] == [1, 2]


def test_publication_by_table_name_warns_of_a_file_that_is_not_in_force(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish = "services: {publish: {database: shop, partitions: date, since: '%s'}}\n"
    specs = str(write(more=publish % "2026-01-01").parent)
    run(capsys, "table", "sync", "--specs", specs)
    catalog.load_table("sales.orders").upsert(pa.table({"id": ["a"]}))
    write(more=publish % "2026-02-01")
    metastore = MemoryMetastore()
    monkeypatch.setattr(publication_job, "open_metastore", lambda *args, **kwargs: metastore)
    words = ("publish", "run", "--table", "sales.orders", "--report", str(tmp_path / "report.json"))
    assert main(words) == 0
    report = parse_report((tmp_path / "report.json").read_text())
    assert 'services.publish.since: "2026-01-01" -> "2026-02-01"' in report.warning
    monkeypatch.setenv("LAKEHOUSE_SYNC_SPECS", specs)
    assert main(words) == 0
    assert parse_report((tmp_path / "report.json").read_text()).warning == ""
    assert catalog.entry("sales.orders").spec_version == 2


def test_broken_spec_file_is_a_warning_in_reports_and_stops_no_service(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    specs = str(write(more="services: {compaction: {max_delta_commits: 3}}\n").parent)
    run(capsys, "table", "sync", "--specs", specs)
    fill(catalog)
    write(more="servics: {}\n")
    monkeypatch.setenv("LAKEHOUSE_SYNC_SPECS", specs)
    report = tmp_path / "report.json"
    assert main(["compaction", "run", "--table", "sales.orders", "--report", str(report)]) == 0
    reported = parse_report(report.read_text())
    assert reported.status is JobStatus.COMMITTED
    assert "unknown name 'servics'" in reported.warning
    assert "version 1 stays in force" in reported.warning


def test_job_does_not_create_an_unregistered_table(
    write: Write, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_SYNC_SPECS", str(write().parent))
    assert run(capsys, "services", "due")["decisions"] == []
    assert catalog.list_tables() == ()


def test_read_specs_for_some_tables_skips_the_files_of_others(write: Write) -> None:
    folder = write("orders").parent
    write("broken", more="nonsense: [\n")
    write("plain", table="plain")
    both = read_specs(spec_paths([folder]), {"sales.orders", "plain"}).specs
    assert [spec.table for spec in both] == ["sales.orders", "plain"]
    found = read_specs(spec_paths([folder]), {"sales.orders"})
    assert ([spec.table for spec in found.specs], found.problems) == (["sales.orders"], ())
    (problem,) = read_specs(spec_paths([folder])).problems
    assert problem.table == "sales.broken" and "not valid YAML" in problem.message


def test_spec_changes_name_settings_and_changed_order() -> None:
    before = {"a": 1, "options": {"x.y": "1", "z": "2"}, "schema": {"id": "string", "v": "int"}}
    after = {"b": [2], "options": {"x.y": "3", "z": "2"}, "schema": {"v": "int", "id": "string"}}
    assert list(map(str, spec_changes(before, after))) == [
        "a: 1 -> not set",
        'options.x.y: "1" -> "3"',
        'schema (order): ["id", "v"] -> ["v", "id"]',
        "b: not set -> [2]",
    ]
    assert changes_text(spec_changes(before, after), 1) == "a: 1 -> not set and 3 more"
    assert spec_changes(before, before) == ()


def test_upgrade_of_the_first_schema_keeps_specs(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/catalog.db")
    config: Config = _config()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(sa.text("INSERT INTO lakehouse_namespaces VALUES ('sales', '{}', 1)"))
        connection.execute(sa.text("INSERT INTO lakehouse_tables VALUES (1, 'sales', 'orders', '/x/orders', 1, 1)"))
        document = json.dumps({"table": "sales.orders", "location": "/x/orders", "record_key": ["id"]})
        connection.execute(sa.text("INSERT INTO lakehouse_specs VALUES (1, 1, :d, 'ada', 7)"), {"d": document})
        connection.commit()
    engine.dispose()
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        (version,) = catalog.spec_history("sales.orders")
        assert (version.author, version.source, version.created_ms) == ("ada", "", 7)
        assert Database(f"sqlite:///{tmp_path}/catalog.db").upgrade() == "0007"
