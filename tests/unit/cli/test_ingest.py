"""Catalog, metrics and sync of `lakehouse ingest run`: their errors do not stop the ingestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli import ingest as command
from lakehouse.cli.main import main
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.errors import UserError
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.spec.contracts.job import IngestReport, JobStatus, combined, parse_report


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a spec; its ingestion is replaced by a report, because tests with Spark cover it."""
    done = IngestReport(status=JobStatus.COMMITTED, table="orders", instant="20260101000000000", rows=3)
    monkeypatch.setattr(command, "job_session", lambda name: None)
    monkeypatch.setattr(command, "run_ingest", lambda *args, **kwargs: done)
    path = tmp_path / "orders.yaml"
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text('{"id": "a"}\n')
    path.write_text(f"table: orders\nlocation: {tmp_path}/orders\nrecord_key: id\ningest: {{path: {landing}}}\n")
    return path


def test_ingest_continues_if_the_catalog_is_unavailable(
    spec: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", "postgresql+psycopg://user@127.0.0.1:9/none")
    assert main(["ingest", "run", "--table", str(spec)]) == 0
    assert "the run is not recorded in the catalog" in caplog.text


def test_ingest_records_successful_and_failed_runs(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    assert main(["ingest", "run", "--table", str(spec), "--run-id", "r1"]) == 0

    def fails(*args: object, **kwargs: object) -> IngestReport:
        raise UserError("no such file")

    monkeypatch.setattr(command, "run_ingest", fails)
    assert main(["ingest", "run", "--table", str(spec), "--run-id", "r2"]) == 64
    with load_catalog() as catalog:
        runs = {run.run_id: run for run in catalog.history.runs(catalog.entry("orders").id, "ingest")}
    assert (runs["r1"].state, runs["r1"].instant) == (RunState.COMMITTED, "20260101000000000")
    assert (runs["r2"].state, runs["r2"].error) == (RunState.FAILED, "UserError: no such file")


def test_ingest_reports_invalid_settings_before_ingestion(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_ingest", lambda *args, **kwargs: pytest.fail("it was ingested"))
    monkeypatch.setenv("LAKEHOUSE_CATALOG", "nonsense://x")
    assert main(["ingest", "run", "--table", str(spec)]) == 64
    assert "cannot be used" in capsys.readouterr().err


SYNCED = "options: {hoodie.datasource.hive_sync.enable: true}\n"


def test_failed_sync_is_a_warning_of_a_successful_ingest(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "storage_options_of", lambda session: {})
    monkeypatch.setenv("LAKEHOUSE_METASTORE", "thrift://127.0.0.1:1")
    Table.create(str(tmp_path / "orders"), name="orders", record_key=["id"]).insert(pa.table({"id": ["a"]}))
    spec.write_text(spec.read_text() + SYNCED)
    report = tmp_path / "report.json"
    assert main(["ingest", "run", "--table", str(spec), "--report", str(report)]) == 0
    found = parse_report(report.read_text())
    assert found.status is JobStatus.COMMITTED
    assert found.warning.startswith("metastore sync: RetryableError: thrift://127.0.0.1:1")
    assert "the sync to the metastore failed" in caplog.text


def test_runs_of_a_stream_share_the_tables_that_stay_open(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def ingested(*args: Any, tables: Any, **kwargs: Any) -> IngestReport:
        seen.append(tables)
        return IngestReport(status=JobStatus.NOTHING_TO_DO, table="orders", reason="no new files")

    monkeypatch.setattr(command, "run_ingest", ingested)
    monkeypatch.setattr(command, "_checked", lambda *args: ())
    monkeypatch.setattr(command, "storage_options_of", lambda session: {})
    assert main(["ingest", "stream", "--table", str(spec), "--every", "1s", "--run-for", "2s"]) == 0
    assert len(seen) > 1 and isinstance(seen[0], OpenedTables)
    assert all(one is seen[0] for one in seen)
    seen.clear()
    main(["ingest", "run", "--table", str(spec)])
    assert seen == [None]


def test_ingest_with_sync_updates_the_metastore(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metastore = MemoryMetastore()
    monkeypatch.setattr(command, "storage_options_of", lambda session: {})
    monkeypatch.setattr(command, "open_metastore", lambda policy: metastore)
    Table.create(str(tmp_path / "orders"), name="orders", record_key=["id"]).insert(pa.table({"id": ["a"]}))
    spec.write_text(spec.read_text() + SYNCED)
    assert main(["ingest", "run", "--table", str(spec)]) == 0
    assert metastore.table("default", "orders") is not None


def test_ingest_reports_sync_without_metastore_before_ingestion(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_ingest", lambda *args, **kwargs: pytest.fail("it was ingested"))
    monkeypatch.delenv("LAKEHOUSE_METASTORE", raising=False)
    spec.write_text(spec.read_text() + SYNCED)
    assert main(["ingest", "run", "--table", str(spec)]) == 64
    assert "no metastore is configured" in capsys.readouterr().err


def test_sync_updates_the_metastore_for_each_table_of_a_database(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metastore = MemoryMetastore()
    for name in ("items", "orders"):
        Table.create(str(tmp_path / "shop" / name), name=name, record_key=["id"]).insert(pa.table({"id": ["a"]}))
    parts = [
        IngestReport(status=JobStatus.COMMITTED, table="orders", instant="20260101000000000"),
        IngestReport(status=JobStatus.NOTHING_TO_DO, table="items"),
        IngestReport(status=JobStatus.COMMITTED, table="gone", instant="20260101000000000"),
    ]
    monkeypatch.setattr(command, "run_ingest", lambda *args, **kwargs: combined(parts))
    monkeypatch.setattr(command, "_checked", lambda *args: ())
    monkeypatch.setattr(command, "storage_options_of", lambda session: {})
    monkeypatch.setattr(command, "open_metastore", lambda policy: metastore)
    ingestion = '{source: mysql, tables: "shop.*", into: "{table}"}'
    spec.write_text(f"table: shop\nlocation: {tmp_path}/shop\ningest: {ingestion}\n{SYNCED}")
    report = tmp_path / "report.json"
    assert main(["ingest", "run", "--table", str(spec), "--report", str(report)]) == 0
    assert [metastore.table("default", name) is not None for name in ("items", "orders", "gone")] == [True, True, False]
    found = parse_report(report.read_text())
    assert found.warning.startswith("gone: metastore sync: ")
    assert [part.warning != "" for part in found.parts] == [False, False, True]
