"""Output, effects and exit codes of `lakehouse clustering`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, batch, data_rows, make_table, row


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Create a table of two partitions: one with three small files, one with one file."""
    return _made(tmp_path)


def _made(tmp_path: Path, **shape: Any) -> Table:
    env = Env(storage=open_storage(str(tmp_path / "t")))
    made = Table.open(make_table(Shape(fills_small_files=False, **shape), env=env).location)
    for number in range(3):
        rows = [row(f"k{number}{i}", v=str((7 * i + number) % 5), ts=i) for i in range(3)]
        made.bulk_insert(batch(rows if number else [*rows, row("k9", p="b")]))
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--output", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out.strip() else out.err


def files(table: Table) -> dict[str, int]:
    return {file.path: file.size_bytes for file in table.refresh().env.storage.list("")}


def test_clustering_due_prints_the_condition_and_its_reason(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "clustering", "due", "--table", table.location)
    assert (code, answer) == (
        0,
        {
            "version": 1,
            "service": "clustering",
            "due": False,
            "reason": "3 commits; due after 4",
            "inputs": {"commits": 3, "pending": []},
        },
    )
    few = ("--option", "hoodie.clustering.inline.max.commits=3")
    assert run(capsys, "clustering", "due", "--table", table.location, *few)[1]["due"] is True


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_clustering_dry_run_prints_the_plan_and_writes_nothing(
    verb: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(table)
    code, plan = run(capsys, "clustering", verb, "--table", table.location, "--dry-run")
    assert code == 0
    assert [(group["partition"], group["file_groups"], group["output_groups"]) for group in plan["groups"]] == [
        ("a", 3, 1)
    ]
    words = ("--partitions=b", "--sort-columns", "v,ts")
    code, plan = run(capsys, "clustering", verb, "--table", table.location, "--dry-run", *words)
    assert [(group["partition"], group["file_groups"], group["sort_columns"]) for group in plan["groups"]] == [
        ("b", 1, "v,ts")
    ]
    assert files(table) == before


def test_forced_clustering_plan_is_scheduled_once_and_executed_by_instant(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = data_rows(table)
    code, none = run(capsys, "clustering", "plan", "--table", table.location)
    assert (code, none["instant"]) == (0, None) and "due after 4" in none["reason"]
    code, planned = run(capsys, "clustering", "plan", "--table", table.location, "--force")
    assert code == 0 and planned["action"] == "clustering"
    code, again = run(capsys, "clustering", "plan", "--table", table.location, "--force")
    assert (code, again["instant"]) == (0, None) and "held by another plan" in again["reason"]
    words = ("clustering", "run", "--table", table.location, "--instant", planned["instant"])
    code, report = run(capsys, *words)
    assert (code, report["status"], report["instant"]) == (0, "committed", planned["instant"])
    assert (report["files"], report["rows"]) == (1, 9)
    assert data_rows(table) == rows
    code, error = run(capsys, *words)
    assert code == 64 and "is completed; pending plans: none" in error


def test_clustering_run_sorts_by_columns_and_then_has_nothing_to_do(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("clustering", "run", "--table", table.location, "--force", "--sort-columns", "v", "--layout", "z-order")
    code, report = run(capsys, *words)
    assert (code, report["status"], report["files"]) == (0, "committed", 2)
    values = [found["v"] for found in table.scan(["v"], where="p = 'a'").to_arrow().to_pylist()]
    assert values == sorted(values)
    assert run(capsys, *words)[1]["status"] == "nothing_to_do"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("rum",), 64, "Did you mean 'run'?"),
        (("run", "--instant", "20200101000000000"), 64, "20200101000000000 does not exist"),
        (("plan", "--force", "--sort-columns", "vv"), 64, "column 'vv' is not in"),
        (("plan", "--force", "--partitions", "c"), 64, "'c' is not a partition"),
        (("run", "--force", "--partitions"), 64, "--partitions needs a value"),
        (("due", "--layout", "hilbrt"), 64, "Did you mean 'hilbert'?"),
    ],
)
def test_invalid_clustering_arguments_are_refused(
    words: tuple[str, ...], code: int, message: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    got = main(["clustering", words[0], "--table", table.location, *words[1:]])
    assert (got, message in capsys.readouterr().err) == (code, True)


@pytest.mark.parametrize("verb", ["due", "plan", "run"])
def test_clustering_refuses_a_number_of_buckets_that_is_not_valid(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucketed = _made(tmp_path, index="BUCKET")
    words = ("--option", "lakehouse.clustering.buckets=many")
    code, error = run(capsys, "clustering", verb, "--table", bucketed.location, *words)
    assert code == 64
    assert "must be a number from 1 to 99999999, or auto" in error


def test_clustering_refuses_sort_columns_without_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested = Table.create(str(tmp_path / "n"), name="n", record_key=["id"])
    nested.insert(pa.table({"id": ["a"], "tags": pa.array([["x"]])}))
    words = ("clustering", "plan", "--force", "--table", nested.location, "--sort-columns", "tags")
    code, error = run(capsys, *words)
    assert code == 64 and "column 'tags' has the type list" in error
