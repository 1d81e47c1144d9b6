"""`lakehouse rollback`, `lakehouse savepoint` and `lakehouse restore`: what they print, what they do, how they exit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action
from tests.support.tables import Shape, batch, data_rows, make_table, row
from tests.unit.core.operations.test_rollback import pending_write, times


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three commits."""
    made = make_table(Shape(), env=Env(storage=open_storage(str(tmp_path / "t"))))
    for number in range(3):
        made.upsert(batch([row("k1", ts=number, v=str(number))]))
    return Table.open(made.location)


def run(capsys: pytest.CaptureFixture[str], table: Table, *words: str) -> tuple[int, Any]:
    """Run a command; return its exit code and what it printed: values, or the error's text."""
    capsys.readouterr()
    code = main([*words, "--table", table.location, "--output", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.strip() else out.err


def value(table: Table) -> str:
    (found,) = data_rows(table, ["v"])
    return str(found["v"])


def test_rollback_run_undoes_the_newest_write(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    instant, last = table.commits()[-1]
    files = [stat.path for stat in last.stats]
    words = ("rollback", "run", "--instant", instant.requested)
    code, answer = run(capsys, table, *words, "--dry-run")
    assert (code, answer) == (0, {"would roll back": instant.requested, "action": "commit", "files": files})
    assert value(table) == "2"
    code, answer = run(capsys, table, *words)
    assert (code, answer) == (0, {"rolled back": instant.requested, "action": "commit", "files": files})
    assert value(table) == "1"
    code, answer = run(capsys, table, *words)
    assert code == 0 and answer["rolled back"] is None and "already" in answer["reason"]


def test_rollback_run_refuses_by_exit_code(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first = times(table)[0]
    code, text = run(capsys, table, "rollback", "run", "--instant", first)
    assert code == UserError.exit_code and f"completed after {first}" in text
    alive, _ = pending_write(table, alive=True)
    code, text = run(capsys, table, "rollback", "run", "--instant", alive)
    assert code == RetryableError.exit_code and "--force" in text
    code, answer = run(capsys, table, "rollback", "run", "--instant", alive, "--force")
    assert code == 0 and answer["rolled back"] == alive


def test_rollback_failed_tells_whom_it_spared(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    dead, _ = pending_write(table, alive=False)
    alive, _ = pending_write(table, alive=True)
    code, answer = run(capsys, table, "rollback", "failed", "--dry-run")
    assert (code, answer) == (0, {"would roll back": [dead], "left to living writers": [alive]})
    assert table.timeline.find(dead) is not None
    code, answer = run(capsys, table, "rollback", "failed")
    assert (code, answer) == (0, {"rolled back": [dead], "left to living writers": [alive]})


def test_savepoints_are_made_listed_and_deleted(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    kept = times(table)[1]
    words = ("savepoint", "create", "--instant", kept, "--user", "ann", "--comment", "why")
    code, would = run(capsys, table, *words, "--dry-run")
    assert code == 0 and run(capsys, table, "savepoint", "list") == (0, [])
    code, made = run(capsys, table, *words)
    assert code == 0 and made | {"at": ""} == would | {"at": ""}
    assert {k: made[k] for k in ("savepoint", "by", "comment", "partitions", "files")} == {
        "savepoint": kept, "by": "ann", "comment": "why", "partitions": 1, "files": 1,
    }  # fmt: skip
    assert run(capsys, table, "savepoint", "list") == (0, [made])
    code, again = run(capsys, table, *words)
    assert code == 0 and again["savepoint"] is None
    assert run(capsys, table, "savepoint", "delete", "--instant", kept, "--dry-run") == (0, {"would delete": kept})
    assert run(capsys, table, "savepoint", "delete", "--instant", kept) == (0, {"deleted": kept})
    code, text = run(capsys, table, "savepoint", "delete", "--instant", kept)
    assert code == UserError.exit_code and "savepoints: none" in text


def test_restore_run_goes_back(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first, *later = times(table)
    undone = [{"instant": requested, "action": "commit", "files": 1} for requested in reversed(later)]
    code, answer = run(capsys, table, "restore", "run", "--to", first, "--dry-run")
    assert (code, answer) == (0, {"would restore to": first, "undone": undone})
    assert value(table) == "2"
    code, answer = run(capsys, table, "restore", "run", "--to", first)
    (restore,) = table.timeline.where(action=Action.RESTORE)
    assert (code, answer) == (0, {"restored to": first, "instant": restore.requested, "undone": undone})
    assert value(table) == "0"
    code, answer = run(capsys, table, "restore", "run", "--to", first)
    assert code == 0 and answer["restored to"] is None


def test_the_timeline_shows_savepoints_and_restores(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first = times(table)[0]
    table.savepoint(first)
    table.restore(first)
    code, shown = run(capsys, table, "timeline", "show")
    assert code == 0
    assert [(entry["action"], entry["state"]) for entry in shown] == [
        ("commit", "COMPLETED"), ("savepoint", "COMPLETED"), ("restore", "COMPLETED"),
    ]  # fmt: skip
    code, described = run(capsys, table, "table", "describe")
    assert code == 0 and described["pending restore"] is None
    assert [savepoint["instant"] for savepoint in described["savepoints"]] == [first]


@pytest.mark.parametrize(("noun", "verb", "near"), [("rollback", "fail", "failed"), ("savepoint", "lst", "list")])
def test_a_misspelt_verb_is_answered_with_the_nearest(
    noun: str, verb: str, near: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, table, noun, verb)
    assert code == UserError.exit_code and f"Did you mean '{near}'?" in text
