"""Output, effects and exit codes of `lakehouse ttl`."""

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
from tests.support.tables import Shape, batch, make_table, row

TWO = ("--option", "lakehouse.ttl.max.partitions=2")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Create a table of four partitions, which are old days."""
    made = make_table(Shape(hive_style=True), env=Env(storage=open_storage(str(tmp_path / "t"))))
    made.bulk_insert(batch(row(f"k{n}", p=f"2020-01-0{n}") for n in range(1, 5)))
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--output", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.strip() else out.err


def files(table: Table) -> dict[str, int]:
    return {file.path: file.size_bytes for file in table.refresh().env.storage.list("")}


def test_ttl_due_prints_the_condition_and_its_reason(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "ttl", "due", "--table", table.location, *TWO)
    assert (code, answer["due"], answer["inputs"]["partitions"]) == (0, True, 2)
    assert answer["reason"].startswith("p=2020-01-01: not among the newest 2 partitions")
    assert run(capsys, "ttl", "due", "--table", table.location)[1]["due"] is False


@pytest.mark.parametrize("words", [("plan",), ("plan", "--dry-run"), ("run", "--dry-run"), ("plan", "--force")])
def test_ttl_plan_is_printed_and_nothing_is_written(
    words: tuple[str, ...], table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(table)
    pin = ("--pin", "p=2020-01-02")
    code, answer = run(capsys, "ttl", words[0], "--table", table.location, *words[1:], *TWO, *pin)
    assert (code, len(answer["expired"])) == (0, 1)
    assert [(p["partition"], p["rows"], p["files"]) for p in answer["expired"]] == [("p=2020-01-01", 1, 1)]
    assert [(p["partition"], p["reason"]) for p in answer["kept"]] == [("p=2020-01-02", "pinned")]
    assert files(table) == before


def test_ttl_run_writes_a_job_report(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    words = ["ttl", "run", "--table", table.location, *TWO, "--report", str(report)]
    assert main(words) == 0
    document = json.loads(report.read_text())
    done = table.timeline.writes().by_completion()[-1]
    assert (document["status"], document["instant"]) == ("committed", done.requested)
    assert list(table.partitions()) == ["p=2020-01-03", "p=2020-01-04"]
    assert main(words) == 0
    assert json.loads(report.read_text())["status"] == "nothing_to_do"
    capsys.readouterr()


def test_ttl_policy_sets_lists_and_removes_rules(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--table", table.location)
    code, answer = run(capsys, "ttl", "policy", "set", *where, "--pattern", "*", "--partition-age", "400d")
    limits = {name: value for name, value in answer["rule"].items() if value not in (None, "")}
    assert (code, limits) == (0, {"id": "*", "pattern": "*", "partition_age_s": 400 * 86_400})
    keep = ("--pattern", "p=2020-01-03", "--id", "third", "--keep")
    assert run(capsys, "ttl", "policy", "set", *where, *keep)[0] == 0
    assert [rule["id"] for rule in run(capsys, "ttl", "policy", "list", *where)[1]["rules"]] == ["*", "third"]
    assert len(run(capsys, "ttl", "plan", *where)[1]["expired"]) == 3
    assert run(capsys, "ttl", "policy", "remove", *where, "--id", "third") == (
        0,
        {"version": 1, "removed": "third"},
    )
    assert len(run(capsys, "ttl", "plan", *where)[1]["expired"]) == 4
    assert main(["ttl", "policy", "list", *where]) == 0
    assert "partition_age_s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ttl", "plans"], "Did you mean 'plan'"),
        (["ttl", "policy", "sett"], "Did you mean 'set'"),
        (["ttl", "policy", "set", "--pattern", "*"], "needs a limit"),
        (["ttl", "policy", "set", "--pattern", "*", "--keep", "--max-partitions", "3"], "not both"),
        (["ttl", "policy", "set", "--pattern", "*", "--partition-age", "4 moons"], "is not a duration"),
        (["ttl", "policy", "remove", "--id", "x"], "rules: none"),
        (["ttl", "due", "--option", "lakehouse.ttl.max.bytes=much"], "is not a size"),
        (["ttl", "due", "--option", "nothing"], "expected key=value"),
    ],
)
def test_invalid_ttl_arguments_are_refused(
    words: list[str], message: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*words, "--table", table.location] if len(words) > 2 else words)
    assert code == 64 and message in capsys.readouterr().err
