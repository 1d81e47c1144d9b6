"""Output, effects and exit codes of `lakehouse clean`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, base_files, batch, data_rows, make_table, row

TWO = ("--option", "hoodie.clean.commits.retained=2")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Create a table of one file group with five versions."""
    made = make_table(Shape(rows_per_file=1_000), env=Env(storage=open_storage(str(tmp_path / "t"))))
    for number in range(5):
        made.upsert(batch([row("k0", ts=number, v=f"v{number}")]))
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--output", "json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out.strip() else printed.err


def test_clean_due_prints_the_condition_and_its_reason(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "clean", "due", "--table", table.location)
    assert (code, answer["due"], answer["inputs"]["commits"]) == (0, False, 5) and "all of them are retained" in answer[
        "reason"
    ]
    assert run(capsys, "clean", "due", "--table", table.location, *TWO)[1]["due"] is True


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_clean_dry_run_prints_the_plan_and_deletes_nothing(
    verb: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.path for file in table.refresh().env.storage.list("")}
    code, answer = run(capsys, "clean", verb, "--table", table.location, "--dry-run", *TWO)
    assert code == 0
    assert answer["policy"] == "KEEP_LATEST_COMMITS" and answer["files"] == 2
    assert answer["earliest_retained"] == table.commits()[3][0].requested
    oldest = min(base_files(table.refresh().env.storage), key=lambda base: base.instant)
    assert answer["partitions"] == [
        {"partition": "a", "files": 2, "partition_is_deleted": False, "example": oldest.name}
    ]
    assert {file.path for file in table.refresh().env.storage.list("")} == before
    capsys.readouterr()
    assert main(["clean", verb, "--table", table.location, "--dry-run", *TWO]) == 0
    assert "earliest retained" in capsys.readouterr().out


def test_clean_plan_is_scheduled_and_executed(table: Table, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "clean", "plan", "--table", table.location)[1]["instant"] is None
    code, answer = run(capsys, "clean", "plan", "--table", table.location, *TWO)
    assert code == 0 and answer["action"] == "clean"
    report = tmp_path / "report.json"
    words = ("clean", "run", "--table", table.location, "--instant", answer["instant"], "--report", str(report))
    code, printed = run(capsys, *words)
    assert code == 0 and (printed["status"], printed["files"]) == ("committed", 2)
    assert json.loads(report.read_text())["instant"] == answer["instant"]
    assert len(base_files(table.refresh().env.storage)) == 3 and data_rows(table, ["v"]) == [{"v": "v4"}]
    code, printed = run(capsys, "clean", "run", "--table", table.location, "--force", *TWO)
    assert code == 0 and printed["status"] == "nothing_to_do"


def test_clean_orphans_prints_orphan_files_and_deletes_them_by_flag(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    base = base_files(table.refresh().env.storage)[0]
    stray = Path(table.location) / base.path.replace(base.write_token, "9-9-9")
    stray.write_bytes(b"abc")
    os.utime(stray, (10**9, 10**9))
    code, answer = run(capsys, "clean", "orphans", "--table", table.location)
    assert (code, answer["deleted"], answer["files"], answer["bytes"]) == (0, False, 1, 3)
    assert answer["orphans"][0]["modified"] == "2001-09-09 01:46:40" and stray.exists()
    _, answer = run(capsys, "clean", "orphans", "--table", table.location, "--delete", "--dry-run")
    assert (answer["deleted"], answer["files"]) == (False, 1)
    _, answer = run(capsys, "clean", "orphans", "--table", table.location, "--delete")
    assert (answer["deleted"], answer["files"]) == (True, 1)
    assert not stray.exists() and data_rows(table, ["v"]) == [{"v": "v4"}]


def test_unknown_verb_and_option_errors_suggest_the_nearest_name(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = run(capsys, "clean", "orphan")
    assert code != 0 and "did you mean 'orphans'" in message.lower()
    code, message = run(capsys, "clean", "due", "--table", table.location, "--option", "hoodie.clean.commit.retained=1")
    assert code != 0 and "hoodie.clean.commits.retained" in message
