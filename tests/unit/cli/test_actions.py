"""`lakehouse action`, `lakehouse timeline bars | instant` and `lakehouse table files` on a real table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.fleet_views.actions import ActionState, NewAction, end_action, record_action
from tests.support.lake import build

TABLE = "sales.orders"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalog with a table of six commits and a savepoint of the newest one."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    build(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Run a command with JSON output and return the result."""
    capsys.readouterr()
    assert main([*words, "--output", "json"]) == code
    return json.loads(capsys.readouterr().out)


def recorded(action: str, **parameters: Any) -> int:
    """Record an action as the API does, and return its number."""
    new = NewAction(table=TABLE, action=action, parameters=parameters, author="oleg", dag="lakehouse.actions")
    with load_catalog() as catalog, catalog.database.session() as session:
        return record_action(session, new, catalog.clock.now_ms())


def test_recorded_savepoint_is_created_once_with_the_name_of_the_user(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = output(capsys, "timeline", "bars", "--table", TABLE)
    number = recorded("savepoint", instant=bars["instants"][1], comment="keep")
    for _ in range(2):
        done = output(capsys, "action", "run", "--id", str(number))["action"]
        assert (done["state"], done["author"]) == ("done", "oleg")
    listed = output(capsys, "savepoint", "list", "--table", TABLE)["savepoints"]
    assert [(kept["by"], kept["comment"]) for kept in listed] == [("oleg", "keep"), ("ada", "before the migration")]


def test_failed_action_has_its_error_in_the_catalog(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = recorded("restore", instant="20000101000000000")
    failed = output(capsys, "action", "run", "--id", str(number), code=64)["action"]
    assert failed["state"] == "failed"
    assert "20000101000000000" in failed["result"]["error"]
    (listed,) = output(capsys, "action", "list", "--table", TABLE)["actions"]
    assert listed == failed


def test_failed_action_is_done_again_only_if_its_error_was_retryable(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = recorded("savepoint", comment="keep")
    with load_catalog() as catalog:
        for result, code in (({"error": "the files are gone"}, 64), ({"error": "busy", "retryable": True}, 0)):
            with catalog.database.session() as session:
                end_action(session, number, ActionState.FAILED, result)
            assert main(["action", "run", "--id", str(number)]) == code
    assert "action 1 has failed, so it is not repeated: the files are gone" in capsys.readouterr().err
    assert main(["action", "run", "--id", str(10**30)]) == 64


def test_new_action_by_flags_is_recorded_and_done(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = output(capsys, "action", "run", "--table", TABLE, "--action", "rollback_failed")["action"]
    assert (done["state"], done["result"]["rolled_back"]) == ("done", [])
    assert main(["action", "run", "--table", TABLE, "--action", "rolback"]) == 64
    assert "rollback" in capsys.readouterr().err


def test_bars_instants_and_files_describe_the_same_table(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bars = output(capsys, "timeline", "bars", "--table", TABLE)
    assert bars["actions"] == ["deltacommit"] * 6 + ["savepoint"]
    assert all(end >= begin for begin, end in zip(bars["begin_ms"], bars["end_ms"], strict=True))
    detail = output(capsys, "timeline", "instant", "--table", TABLE, "--instant", bars["instants"][0])
    assert (detail["operation"], detail["numbers"]["inserts"], detail["numbers"]["partitions"]) == ("UPSERT", 60, 4)
    files = output(capsys, "table", "files", "--table", TABLE, "--limit", "1")
    assert (files["total"], len(files["groups"])) == (4, 1)
    assert sum(bucket["files"] for bucket in files["histogram"]) == 4
    assert files["groups"][0]["log_files"] >= 1
