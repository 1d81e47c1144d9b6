"""`--check` of jobs: it finds errors of the configuration by metadata, without a Spark session and without listings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.cli import ingest as ingest_command
from lakehouse.cli import publish as publish_command
from lakehouse.cli import table_service
from lakehouse.cli.main import main
from lakehouse.core.storage.local import LocalStorage
from lakehouse.spec.contracts.job import ErrorCode, parse_report
from lakehouse.spec.contracts.job_check import JobCheck

SORT = "hoodie.clustering.plan.strategy.sort.columns"


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that starts a Spark session."""
    for module in (ingest_command, table_service, publish_command):
        monkeypatch.setattr(module, "job_session", lambda name: pytest.fail("a Spark session was started"))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Return the spec of a copy-on-write table with a publication; the table does not exist."""
    (tmp_path / "landing").mkdir()
    path = tmp_path / "orders.yaml"
    path.write_text(
        f"table: sales.orders\nlocation: {tmp_path}/orders\nrecord_key: id\npartition_by: day\nordering: ts\n"
        f"ingest: {{path: {tmp_path}/landing}}\n"
    )
    return path


@pytest.fixture
def orders(spec: Path) -> Table:
    """Create the table of the spec with one row."""
    table = Table.create(
        str(spec.parent / "orders"), name="sales.orders", record_key=["id"], partition_by=["day"], ordering=["ts"]
    )
    table.insert(pa.table({"id": ["a"], "day": ["2026-03-01"], "ts": [1], "zone": ["z"]}))
    return table


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main([*words, "--check"])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_check_of_a_missing_table_says_that_the_run_creates_it(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("ingest", "run", "--table", str(spec), "--output", "json")
    code, printed = check(capsys, *words)
    assert code == 0
    checked = JobCheck.from_json(printed)
    assert (checked.command, checked.tables) == ("ingest run", (str(spec),))
    assert checked.notes == (f"sales.orders does not exist at {spec.parent}/orders; the run creates it",)
    assert not (spec.parent / "orders").exists(), "a check writes nothing"
    assert JobCheck.from_json(checked.to_json()) == checked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clustering", "--option", f"{SORT}=zon"], "column 'zon' is not in"),
        (["clustering", "--option", "hoodie.clusterin.x=1"], "unknown option 'hoodie.clusterin.x'"),
        (["clustering", "--option", "hoodie.layout.optimize.strategy=spiral"], "'spiral'"),
        (["clustering", "--instant", "20200101000000000"], "the clustering 20200101000000000 does not exist"),
        (["clustering", "--partition", "2026-03-09"], "has no partition '2026-03-09'"),
        (["clean", "--partition", "2026-03-01"], "clean works on whole tables"),
        (["compaction"], "nothing for compaction"),
        (["publish"], "no section services.publish"),
    ],
)
def test_wrong_configuration_is_a_user_error_of_the_check_and_of_the_run(
    orders: Table, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    command = [words[0], "run", "--table", str(spec), *words[1:], "--report", str(tmp_path / "report.json")]
    for flags in (["--check"], []):
        capsys.readouterr()
        assert main([*command, *flags]) in (64, 69)
        printed = capsys.readouterr()
        assert message in printed.err and "Traceback" not in printed.err
        error = parse_report((tmp_path / "report.json").read_text()).error
        assert error is not None and error.code in (ErrorCode.USER, ErrorCode.UNSUPPORTED) and message in error.message
        (tmp_path / "report.json").unlink()


@pytest.mark.parametrize("verb", ["compaction", "logcompaction"])
def test_stored_type_is_checked_for_a_table_without_spec(
    orders: Table, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    code, printed = check(capsys, verb, "run", "--table", orders.location)
    assert code == 69 and "is a copy-on-write table" in printed


@pytest.mark.parametrize(
    ("ingest", "flags", "message"),
    [
        ("{path: '{landing}', options: {multiLin: true}}", [], "'multiLin' is not an option of the json reader"),
        ("{path: '{landing}/nowhere'}", [], "there is no file or directory"),
        ("{path: '{landing}/{start:%Y-%m-%d}/'}", [], "is read by data interval, and this run has none"),
        ("{path: '${NOWHERE_SET}/x'}", [], "needs the environment variable NOWHERE_SET"),
        ("{path: '{landing}'}", ["--option", "hoodie.datasource.hive_sync.enable=true"], "no metastore is configured"),
    ],
)
def test_wrong_source_is_found_before_the_session(
    spec: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ingest: str,
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("LAKEHOUSE_METASTORE", raising=False)
    lines = spec.read_text().splitlines()[:-1]
    spec.write_text("\n".join([*lines, "ingest: " + ingest.replace("{landing}", str(spec.parent / "landing"))]))
    for more in (["--check"], []):
        capsys.readouterr()
        assert main(["ingest", "run", "--table", str(spec), *flags, *more]) == 64
        assert message in capsys.readouterr().err


def test_spec_that_contradicts_its_table_is_found_by_the_check(
    orders: Table, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(spec.read_text().replace("record_key: id", "record_key: [id, zone]"))
    code, printed = check(capsys, "ingest", "run", "--table", str(spec))
    assert code == 64 and "declares record_key [id, zone]" in printed


def test_source_that_waits_for_data_is_reported_as_missing(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(spec.read_text().replace("/landing}", "/late, missing: wait, wait_for: 2h}"))
    report = spec.parent / "report.json"
    assert check(capsys, "ingest", "run", "--table", str(spec), "--report", str(report))[0] == 75
    error = parse_report(report.read_text()).error
    assert error is not None and (error.code, error.wait_for_s) == (ErrorCode.SOURCE_MISSING, 7200)


def test_check_of_a_service_lists_no_data_files(
    orders: Table, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def recorded(name: str) -> Any:
        inner = getattr(LocalStorage, name)

        def listing(self: LocalStorage, prefix: str) -> Any:
            listed.append(prefix)
            return inner(self, prefix)

        return listing

    for name in ("list", "list_dir", "list_names"):
        monkeypatch.setattr(LocalStorage, name, recorded(name))
    words = ("clustering", "run", "--table", str(spec), "--option", f"{SORT}=zone", "--partition", "2026-03-01")
    assert check(capsys, *words)[0] == 0
    assert listed and all(prefix.startswith(".hoodie") for prefix in listed)


def test_tables_of_a_batch_are_checked_by_name_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_service, "open_table", lambda *args: pytest.fail("a table was opened"))
    assert check(capsys, "clean", "run", "--table", "a.b", "--table", "a.c")[0] == 0
    code, printed = check(capsys, "clean", "run", "--table", "a.b", "--table", "x:a.c")
    assert code == 64 and "must be in one catalog" in printed


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of the report of a job that an Airflow operator started."""
    monkeypatch.setenv("LAKEHOUSE_JOB", "dag/run/task")
    yield tmp_path / "report.json"


def test_job_of_an_operator_prints_neither_report_nor_error(
    orders: Table, submitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["clean", "run", "--table", orders.location]
    assert main([*words, "--report", str(submitted)]) == 0
    assert main([*words, "--report", str(submitted), "--instant", "20200101000000000"]) == 64
    printed = capsys.readouterr()
    assert printed.out == "" and "UserError" not in printed.err


def test_job_in_a_shell_prints_text_or_json(orders: Table, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["clean", "run", "--table", orders.location]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("sales.orders: nothing to do in 0.")
    assert main([*words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "nothing_to_do"
