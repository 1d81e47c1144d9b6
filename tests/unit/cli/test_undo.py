"""Output, effects and exit codes of `lakehouse rollback`, `lakehouse savepoint` and `lakehouse restore`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action
from lakehouse.spec.contracts.undo import (
    FailedWritesResult,
    RestoreResult,
    RevertedWrite,
    RollbackResult,
    SavepointDeletion,
    SavepointInfo,
    SavepointResult,
    Savepoints,
)
from tests.support.tables import Shape, batch, data_rows, make_table, row
from tests.unit.core.operations.test_rollback import pending_write, times


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Create a table of three commits."""
    made = make_table(Shape(), env=Env(storage=open_storage(str(tmp_path / "t"))))
    for number in range(3):
        made.upsert(batch([row("k1", ts=number, v=str(number))]))
    return Table.open(made.location)


def run(capsys: pytest.CaptureFixture[str], table: Table, *words: str) -> tuple[int, Any]:
    """Run a command; return its exit code and its output: JSON values, or the error message."""
    capsys.readouterr()
    code = main([*words, "--table", table.location, "--output", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.strip() else out.err


def value(table: Table) -> str:
    (found,) = data_rows(table, ["v"])
    return str(found["v"])


def test_rollback_run_reverts_the_newest_write(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    instant, last = table.commits()[-1]
    files = [stat.path for stat in last.stats]
    result = RollbackResult(dry_run=False, target=instant.requested, action="commit", files=tuple(files))
    undone = result.to_mapping()
    words = ("rollback", "run", "--instant", instant.requested)
    code, answer = run(capsys, table, *words, "--dry-run")
    assert (code, answer) == (0, undone | {"dry_run": True})
    assert value(table) == "2"
    code, answer = run(capsys, table, *words)
    assert (code, answer) == (0, undone)
    assert value(table) == "1"
    code, answer = run(capsys, table, *words)
    assert code == 0 and answer["target"] is None and "already" in answer["reason"]


def test_rollback_run_refuses_by_exit_code(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first = times(table)[0]
    code, text = run(capsys, table, "rollback", "run", "--instant", first)
    assert code == UserError.exit_code and f"completed after {first}" in text
    active, _ = pending_write(table, active=True)
    code, text = run(capsys, table, "rollback", "run", "--instant", active)
    assert code == RetryableError.exit_code and "--force" in text
    code, answer = run(capsys, table, "rollback", "run", "--instant", active, "--force")
    assert code == 0 and answer["target"] == active


def test_rollback_failed_reports_reverted_and_active_writes(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    expired, _ = pending_write(table, active=False)
    active, _ = pending_write(table, active=True)
    expected = FailedWritesResult(dry_run=False, rolled_back=(expired,), active=(active,)).to_mapping()
    code, answer = run(capsys, table, "rollback", "failed", "--dry-run")
    assert (code, answer) == (0, expected | {"dry_run": True})
    assert table.timeline.find(expired) is not None
    code, answer = run(capsys, table, "rollback", "failed")
    assert (code, answer) == (0, expected)


def test_savepoint_commands_create_list_and_delete(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    kept = times(table)[1]
    words = ("savepoint", "create", "--instant", kept, "--user", "ann", "--comment", "why")
    code, would = run(capsys, table, *words, "--dry-run")
    assert code == 0 and run(capsys, table, "savepoint", "list") == (0, Savepoints().to_mapping())
    code, answer = run(capsys, table, *words)
    made = SavepointResult.from_mapping(answer).savepoint
    planned = SavepointResult.from_mapping(would).savepoint
    assert code == 0 and made is not None and planned is not None
    assert replace(made, at="") == replace(planned, at="")
    assert replace(made, at="") == SavepointInfo(instant=kept, by="ann", comment="why", partitions=1, files=1)
    assert run(capsys, table, "savepoint", "list") == (0, Savepoints(savepoints=(made,)).to_mapping())
    code, again = run(capsys, table, *words)
    assert code == 0 and again["savepoint"] is None
    assert run(capsys, table, "savepoint", "delete", "--instant", kept, "--dry-run") == (
        0,
        SavepointDeletion(dry_run=True, instant=kept).to_mapping(),
    )
    deleted = SavepointDeletion(dry_run=False, instant=kept).to_mapping()
    assert run(capsys, table, "savepoint", "delete", "--instant", kept) == (0, deleted)
    code, text = run(capsys, table, "savepoint", "delete", "--instant", kept)
    assert code == UserError.exit_code and "savepoints: none" in text


def test_restore_run_reverts_later_writes(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first, *later = times(table)
    reverted = tuple(RevertedWrite(instant=requested, action="commit", files=1) for requested in reversed(later))
    code, answer = run(capsys, table, "restore", "run", "--to", first, "--dry-run")
    assert (code, answer) == (0, RestoreResult(dry_run=True, target=first, reverted=reverted).to_mapping())
    assert value(table) == "2"
    code, answer = run(capsys, table, "restore", "run", "--to", first)
    (restore,) = table.timeline.where(action=Action.RESTORE)
    done = RestoreResult(dry_run=False, target=first, instant=restore.requested, reverted=reverted)
    assert (code, answer) == (0, done.to_mapping())
    assert value(table) == "0"
    code, answer = run(capsys, table, "restore", "run", "--to", first)
    assert code == 0 and answer["target"] is None


def test_timeline_show_lists_savepoints_and_restores(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    first = times(table)[0]
    table.savepoint(first)
    table.restore(first)
    code, shown = run(capsys, table, "timeline", "show")
    assert code == 0
    assert [(entry["action"], entry["state"]) for entry in shown["instants"]] == [
        ("commit", "COMPLETED"), ("savepoint", "COMPLETED"), ("restore", "COMPLETED"),
    ]  # fmt: skip
    code, described = run(capsys, table, "table", "describe")
    assert code == 0 and described["pending_restore"] is None
    assert [savepoint["instant"] for savepoint in described["savepoints"]] == [first]


@pytest.mark.parametrize(("noun", "verb", "near"), [("rollback", "fail", "failed"), ("savepoint", "lst", "list")])
def test_unknown_verb_error_suggests_the_nearest_verb(
    noun: str, verb: str, near: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, table, noun, verb)
    assert code == UserError.exit_code and f"Did you mean '{near}'?" in text
