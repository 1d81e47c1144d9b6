"""Ranges of changes of version-6 tables end before the oldest pending write."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.operations.read.commit_range import hole, last_settled, settled, settled_range
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from tests.support.version_6 import MANY_WRITERS, batch, committed, created, failing

KINDS = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def passed(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> tuple[Table, str, str, str]:
    """Return a table with a commit, a pending write, and a later commit, and their requested times."""
    table = created(path, kind, options=MANY_WRITERS)
    first = committed(table.insert(batch(["a1", "b1"], 1, "x"))).requested
    pending = failing(monkeypatch, table, batch(["a1"], 2, "late"))
    last = committed(Table.open(table.location, options=MANY_WRITERS).upsert(batch(["b1"], 3, "y"))).requested
    return Table.open(table.location, options=MANY_WRITERS), first, pending, last


@pytest.mark.parametrize("kind", KINDS)
def test_range_of_changes_ends_before_a_pending_write(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, first, pending, last = passed(tmp_path, monkeypatch, kind)
    assert first < pending < last
    assert [i.requested for i in table.changes(EARLIEST)] == [first]
    assert [i.requested for i in table.changes(None)] == [first]
    assert table.incremental(first).to_arrow().num_rows == 0
    assert table.incremental().to_arrow().column("_hoodie_commit_time").unique().to_pylist() == [first]
    loaded = table.refresh()
    assert (hole(loaded), last_settled(loaded)) == (pending, first)
    assert settled_range(loaded, Incremental(first)) == Incremental(first, first)
    assert settled_range(loaded, Changes(EARLIEST)) == Changes(EARLIEST, first)
    # The snapshot has all completed writes.
    assert {row["v"] for row in table.scan(["v"]).to_arrow().to_pylist()} == {"x", "y"}
    assert len(settled(loaded).timeline) == len(loaded.timeline) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_bound_after_a_pending_write_is_refused_until_its_rollback(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, first, pending, last = passed(tmp_path, monkeypatch, kind)
    for read in (
        lambda: table.changes(first, last),
        lambda: table.changes(last),
        lambda: table.incremental(first, last).to_arrow(),
        lambda: table.incremental(last).to_arrow(),
        lambda: table.incremental(first, pending).to_arrow(),
    ):
        with pytest.raises(RetryableError, match=rf"{pending} is pending, and \w+ \d+ is after it.*Read up to {first}"):
            read()
    table.rollback_failed()
    assert [i.requested for i in table.changes(first)] == [last]
    rows = table.incremental(first, last).to_arrow().to_pylist()
    assert [(row["id"], row["v"]) for row in rows] == [("b1", "y")]


def test_range_before_the_first_commit_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path, "COPY_ON_WRITE", options=MANY_WRITERS)
    pending = failing(monkeypatch, table, batch(["a1"], 2, "late"))
    committed(Table.open(table.location, options=MANY_WRITERS).upsert(batch(["b1"], 3, "y")))
    table = Table.open(table.location, options=MANY_WRITERS)
    assert table.changes(None) == table.changes(EARLIEST) == ()
    assert table.incremental().to_arrow().num_rows == 0
    with pytest.raises(RetryableError, match="There is no commit before it"):
        table.changes(EARLIEST, pending)


@pytest.mark.parametrize("service", ["compaction", "clustering"])
def test_pending_plan_does_not_end_a_range(service: str, tmp_path: Path) -> None:
    table = created(tmp_path, options={"hoodie.clustering.plan.strategy.sort.columns": "v"})
    first = committed(table.insert(batch(["a1", "b1"], 1, "x"))).requested
    if service == "compaction":
        committed(table.upsert(batch(["a1"], 2, "y")))
    table.services.named(service).schedule(force=True)
    table = Table.open(table.location)
    assert [i for i in table.timeline if not i.is_completed]
    table.upsert(batch(["c1"], 3, "z"))
    assert last_settled(table.refresh()) == table.changes(None)[-1].requested
    assert table.incremental(first).to_arrow().num_rows == (2 if service == "compaction" else 1)
    assert hole(table.refresh()) == ""
