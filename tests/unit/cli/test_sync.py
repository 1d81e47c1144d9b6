"""`lakehouse sync due | plan | run` over a metastore in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.platform.metastore.memory import MemoryMetastore


@pytest.fixture
def metastore(monkeypatch: pytest.MonkeyPatch) -> MemoryMetastore:
    made = MemoryMetastore()
    for module in ("metastore_sync", "check"):
        monkeypatch.setattr(f"lakehouse.platform.services.{module}.open_metastore", lambda policy: made)
    return made


@pytest.fixture
def location(tmp_path: Path) -> str:
    place = str(tmp_path / "trips")
    table = Table.create(place, name="trips", record_key=["id"], partition_by=["region"])
    table.insert(pa.table({"id": ["a", "b"], "region": ["eu", "us"]}))
    return place


def test_sync_plan_prints_the_changes_and_makes_none(
    metastore: MemoryMetastore, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", "plan", "--table", location, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["partition"] for row in found["partitions"]] == ["eu", "us"]
    assert found["tables"][0]["created"] and metastore.table("default", "trips") is None


def test_sync_run_makes_the_changes_and_a_second_run_has_none(
    metastore: MemoryMetastore, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sync", "run", "--table", location, "--option", "hoodie.datasource.hive_sync.table=rides"]
    assert main([*words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["added"] == 2
    assert metastore.partition_names("default", "rides") == ("region=eu", "region=us")
    assert main(words) == 0
    assert "the metastore memory is up to date" in capsys.readouterr().out


def test_sync_plan_text_shows_the_first_partitions_and_the_count_of_others(
    metastore: MemoryMetastore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "wide")
    table = Table.create(place, name="wide", record_key=["id"], partition_by=["region"])
    names = [f"r{number}" for number in range(30)]
    table.insert(pa.table({"id": names, "region": names}))
    assert main(["sync", "plan", "--table", place]) == 0
    shown = capsys.readouterr()
    assert "... and 10 more (--output json prints all)" in shown.out
    assert sum("  add " in line for line in shown.out.splitlines()) == 20
    assert metastore.requests == ["table"]


def test_sync_run_text_names_the_tables_and_numbers_of_changes(
    metastore: MemoryMetastore, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", "run", "--table", location]) == 0
    assert "  metastore table default.trips: created; partitions: 2 added" in capsys.readouterr().out.splitlines()
    assert metastore.table("default", "trips") is not None


def test_sync_due_follows_writes_and_sends_no_request_to_the_metastore(
    metastore: MemoryMetastore, location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_due(*words: str) -> tuple[bool, str]:
        assert main(["sync", "due", "--table", location, *words, "--output", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["due"], found["reason"]

    enabled = ("--option", "hoodie.datasource.hive_sync.enable=true")
    assert is_due()[0] is False and is_due()[1].startswith("not applicable: the table declares no metastore")
    assert is_due(*enabled) == (True, "it was not synced yet")
    assert metastore.requests == []
    assert main(["sync", "run", "--table", location]) == 0
    capsys.readouterr()
    assert is_due(*enabled) == (False, "the newest write is synced")
    Table.open(location).insert(pa.table({"id": ["c"], "region": ["asia"]}))
    assert is_due(*enabled) == (True, "1 write since the last sync")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sync", "ruin"], "Did you mean 'run'?"),
        (["sync", "plan", "--option", "hoodie.datasource.hive_sync.mode=jdbc"], "must be hms"),
        (["sync", "plan", "--option", "hoodie.datasource.hive_sync.database=a.b"], "is not a valid name"),
    ],
)
def test_invalid_sync_arguments_are_refused(
    metastore: MemoryMetastore, location: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--table", location] if words[1] == "plan" else words) == 64
    assert message in capsys.readouterr().err
    assert metastore.requests == []


def test_sync_run_without_metastore_names_the_option(
    location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LAKEHOUSE_METASTORE", raising=False)
    assert main(["sync", "run", "--table", location]) == 64
    assert "hoodie.datasource.hive_sync.metastore.uris" in capsys.readouterr().err
