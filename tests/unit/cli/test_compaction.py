"""Output, effects and exit codes of `lakehouse compaction` and `lakehouse logcompaction`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from tests.support.tables import Shape, batch, data_rows, make_table, row

TWO_LOGS = ("--option", "hoodie.log.compaction.blocks.threshold=2")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Create a table of two partitions; only one has log files, of two commits."""
    made = _made(tmp_path, "MERGE_ON_READ")
    made.upsert(batch(row(f"k{n}", v="new") for n in range(3)))
    made.upsert(batch(row(f"k{n}", v="newer") for n in range(2)))
    return made


def _made(tmp_path: Path, kind: str) -> Table:
    location = str(tmp_path / "t")
    shape = Shape(type=kind, rows_per_file=1_000)
    made = Table.open(make_table(shape, env=Env(storage=open_storage(location))).location)
    made.bulk_insert(batch([*(row(f"k{n}", v="old") for n in range(5)), row("k9", p="b", v="old")]))
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--output", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.strip() else out.err


def files(table: Table) -> dict[str, int]:
    return {file.path: file.size_bytes for file in table.refresh().env.storage.list("")}


def test_compaction_due_prints_the_condition_and_its_reason(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "compaction", "due", "--table", table.location)
    assert (code, answer["due"], answer["inputs"]["delta_commits"]) == (0, False, 3)
    assert "due after 5 delta commits" in answer["reason"]
    few = ("--option", "hoodie.compact.inline.max.delta.commits=3")
    assert run(capsys, "compaction", "due", "--table", table.location, *few)[1]["due"] is True


@pytest.mark.parametrize("noun", ["compaction", "logcompaction"])
def test_compaction_dry_run_prints_the_plan_and_writes_nothing(
    noun: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(table)
    code, plan = run(capsys, noun, "plan", "--table", table.location, "--dry-run", *TWO_LOGS)
    assert code == 0
    assert [(operation["partition"], operation["log_files"]) for operation in plan["operations"]] == [("a", 2)]
    assert plan["operations"][0]["base_file"] == table.scan(where="p = 'a'").plan().plan.files[0].name
    assert files(table) == before


def test_compaction_plan_is_not_scheduled_if_not_due(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(table)
    code, answer = run(capsys, "compaction", "plan", "--table", table.location)
    assert (code, answer["instant"]) == (0, None)
    assert "3 delta commits" in answer["reason"]
    assert files(table) == before


def test_forced_compaction_plan_is_scheduled_once_and_executed_by_instant(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = data_rows(table)
    code, planned = run(capsys, "compaction", "plan", "--table", table.location, "--force")
    assert code == 0 and planned["action"] == "compaction"
    code, again = run(capsys, "compaction", "plan", "--table", table.location, "--force")
    assert (code, again["instant"]) == (0, None) and "no other plan holds" in again["reason"]
    words = ("compaction", "run", "--table", table.location, "--instant", planned["instant"])
    code, report = run(capsys, *words)
    assert (code, report["status"], report["instant"]) == (0, "committed", planned["instant"])
    assert (report["files"], report["updates"], report["rows"]) == (1, 3, 5)
    assert data_rows(table) == rows == data_rows(table, read_optimized=True)
    assert run(capsys, *words)[0] == 64


def test_compaction_run_schedules_its_plan_or_has_nothing_to_do(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.json"
    words = ("compaction", "run", "--table", table.location, "--report", str(target))
    code, report = run(capsys, *words)
    assert (code, report["status"]) == (0, "nothing_to_do")
    code, report = run(capsys, *words, "--force")
    assert (code, report["status"]) == (0, "committed")
    assert json.loads(target.read_text())["status"] == "committed"
    assert run(capsys, *words, "--force")[1]["status"] == "nothing_to_do"


def test_log_compaction_merges_two_log_files_into_one(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data_rows(table)
    code, report = run(capsys, "logcompaction", "run", "--table", table.location, *TWO_LOGS)
    assert (code, report["status"], report["files"], report["rows"]) == (0, "committed", 1, 3)
    assert data_rows(table) == rows


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("compaction", "rum"), 64, "Did you mean 'run'?"),
        (("logcompaction", "health"), 64, "verbs are due, plan, run"),
        (("compaction", "run", "--instant", "20200101000000000"), 64, "20200101000000000 does not exist"),
        (("compaction", "due", "--option", "hoodie.compaction.strategi=UnBounded"), 64, "hoodie.compaction.strategy"),
    ],
)
def test_invalid_compaction_arguments_are_refused(
    words: tuple[str, ...], code: int, message: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = () if words[1] in ("rum",) or words[0] == "logcompaction" else ("--table", table.location)
    got, error = run(capsys, *words, *rest)
    assert got == code
    assert message in error


@pytest.mark.parametrize("verb", ["due", "plan", "run"])
def test_compaction_refuses_copy_on_write_tables(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = _made(tmp_path, "COPY_ON_WRITE")
    code, error = run(capsys, "compaction", verb, "--table", copied.location)
    assert code == 69
    assert "copy-on-write" in error


def test_compaction_run_is_retryable_while_another_executor_is_active(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = table.services.compaction.schedule(force=True)
    env, policy = table.refresh().env, table.services.policies.transaction
    heartbeat = Heartbeat(env, policy)
    heartbeat.start(planned.requested)
    try:
        words = ("compaction", "run", "--table", table.location, "--instant", planned.requested)
        code, error = run(capsys, *words)
    finally:
        heartbeat.discard()
    assert code == 75
    assert f"another executor, whose heartbeat is valid, runs the compaction {planned.requested}" in error
    assert run(capsys, *words)[0] == 0
