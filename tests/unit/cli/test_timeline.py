"""`lakehouse timeline show` and `lakehouse index list` on a table of a catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lakehouse.cli.main import main
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.models import RunRow, TableRow
from tests.support.lake import build

TABLE = "sales.orders"
RUN = "services.compaction/scheduled__1/run"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with a table of six commits and a savepoint, compacted by a run of a DAG."""
    place = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{place}/catalog.db")
        build(place)
        with load_catalog() as catalog:
            done = catalog.load_table(TABLE).services.compaction.run(force=True)
            with catalog.database.session() as session:
                (table_id,) = session.scalars(select(TableRow.id))
                run = {"run_id": RUN, "table_id": table_id, "service": "compaction", "state": "committed"}
                session.add(RunRow(**run, started_ms=1, instant=done.instant.requested))  # type: ignore[union-attr]
    return place


@pytest.fixture(autouse=True)
def catalog(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{lake}/catalog.db")


def shown(capsys: pytest.CaptureFixture[str], *words: str, noun: str = "timeline show") -> str:
    capsys.readouterr()
    assert main([*noun.split(), "--table", TABLE, *words]) == 0
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shown(capsys, *words, "--output", "json"))["instants"]
    return found


def test_text_has_headers_words_of_services_and_makers(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    head, _, *rows = text.splitlines()
    names = ["requested", "service", "operation", "state", "took", "rows", "files", "bytes", "by", "note"]
    assert head.split() == names
    assert [row.split()[1] for row in rows] == [*["write"] * 6, "savepoint", "compaction"]
    assert "replacecommit" not in text and "deltacommit" not in text
    assert RUN in rows[-1] and "ingest.sales.orders/manual__7/ingest" in rows[5]
    assert "ada" in rows[6] and "before the migration" in rows[6]


def test_json_keeps_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    *_, compaction = listed(capsys)
    assert {
        "requested",
        "completed",
        "action",
        "state",
        "service",
        "operation",
        "rows",
        "files",
        "bytes",
        "run",
    } <= set(compaction)
    assert (compaction["action"], compaction["state"], compaction["service"]) == ("commit", "COMPLETED", "compaction")
    assert compaction["run"] == RUN


@pytest.mark.parametrize(
    ("words", "services"),
    [
        (["--limit", "2"], ["savepoint", "compaction"]),
        (["--limit", "all", "--service", "compaction"], ["compaction"]),
        (["--action", "deltacommit", "--limit", "1"], ["write"]),
        (["--service", "savepoint", "--service", "compaction"], ["savepoint", "compaction"]),
        (["--state", "inflight"], []),
        (["--since", "1d", "--service", "savepoint"], ["savepoint"]),
        (["--until", "2020-01-01"], []),
        (["--since", "2020-01-01T10:00", "--limit", "1"], ["compaction"]),
        (["--partition", "2026-03-01", "--service", "compaction"], ["compaction"]),
        (["--partition", "2026-04-01"], []),
        (["--archived"], []),
    ],
)
def test_filters_of_timeline_show(words: list[str], services: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [instant["service"] for instant in listed(capsys, *words)] == services


def test_shortened_list_says_how_many_instants_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(the newest 3 of 8 instants; --limit all prints all)" in shown(capsys, "--limit", "3")
    text = shown(capsys, "--partition", "2026-03-01", "--limit", "1")
    assert "(1 instant of this partition; older ones were not searched: --limit all)" in text
    assert "(none)" in shown(capsys, "--archived")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--since", "yesterday"], ["--since 'yesterday' is not a time", "2h or 1d12h"]),
        (["--service", "compact"], ["Did you mean 'compaction'?"]),
        (["--state", "done"], ["is not one of requested, inflight, completed"]),
    ],
)
def test_wrong_filters_name_the_way_out(words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "show", "--table", TABLE, *words]) == 64
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error


def test_service_filter_takes_the_word_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "--service", "ttl") == listed(capsys, "--service", "log compaction") == []


def test_index_list_shows_state_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "--column", "day", "--defer", noun="index create")
    shown(capsys, "--expression", "by_year=substring(day, 1, 4)", noun="index create")
    text = shown(capsys, "--output", "json", noun="index list")
    indexes = {index["name"]: index for index in json.loads(text)["indexes"]}
    facts = {name: (index["kind"], index["state"]) for name, index in indexes.items()}
    assert facts["simple"] == ("writer index", "in_use") and indexes["simple"]["columns"] == ["order_id"]
    assert facts["column_stats"] == ("column statistics", "in_use") and "amount" in indexes["column_stats"]["columns"]
    # The service builds an index that was declared before, too.
    assert facts["day"] == ("secondary index", "in_use") and indexes["day"]["columns"] == ["day"]
    assert indexes["record_index"]["columns"] == ["order_id"] and indexes["day"]["bytes"] > 0
    assert indexes["by_year"]["expression"] == "substring(day, 1, 4)"
    shown(capsys, "--column", "updated", "--name", "late", "--defer", noun="index create")
    head, _, *rows = shown(capsys, noun="index list").splitlines()
    assert head.split() == ["name", "kind", "state", "column", "bytes", "reason"]
    (late,) = [row for row in rows if row.startswith("late")]
    assert "declared" in late and "updated" in late and "`lakehouse index run` builds it" in late
