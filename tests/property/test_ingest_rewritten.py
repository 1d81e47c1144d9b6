"""A landed file that is written again while a run ingests it: the commit holds the version that it says it holds."""

from __future__ import annotations

import json
import os

import pytest

from lakehouse.core.operations.commit import complete as commit
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import SourceChangedError
from lakehouse.platform.ingest import run as run_module
from lakehouse.platform.sources import files
from tests.support.ingested import Landing
from tests.support.killed import Interrupted

OLD, NEW = {"x-0", "x-1", "x-2"}, {"anew-0", "anew-1"}


def landing_of(operation: str, by_interval: bool) -> Landing:
    """A lake with a table, and files to ingest."""
    landing = Landing(f"rewritten-{os.getpid()}", operation=operation, by_interval=by_interval)
    landing.land("before", 2, 0, day=5)
    landing.run(day=5, run_id="before")
    landing.land("x", len(OLD), 1)
    landing.land("y", 1, 0)
    return landing


def rewrite(landing: Landing) -> None:
    """Write `x` again, with other rows."""
    lines = [json.dumps({"id": key, "p": "p0", "ts": 2}) for key in sorted(NEW)]
    landing.lake.put("landing/2026-01-01/x.json", "\n".join(lines).encode())


@pytest.mark.parametrize("by_interval", [False, True], ids=["checkpoint", "interval"])
@pytest.mark.parametrize("operation", ["insert", "bulk_insert", "upsert"])
def test_a_file_written_again_at_any_step_is_there_once(
    operation: str, by_interval: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = landing_of(operation, by_interval)
    alone = FaultyStorage(landing.store)
    landing.run(alone)
    versions: set[frozenset[str]] = set()
    for number in range(1, alone.steps + 1):
        landing = landing_of(operation, by_interval)

        def rival(_: Storage, landing: Landing = landing) -> None:
            rewrite(landing)

        landing.run(Interrupted(landing.store, number, rival, monkeypatch), run_id="met")
        rows = landing.rows()
        landed = frozenset(rows.keys() & (OLD | NEW))
        assert landed in (OLD, NEW), f"rewritten at {number}, {alone.trace[number - 1]}: half of each"
        versions.add(landed)
        landing.run(run_id="again")
        # An interval is ingested once; otherwise a file that was written again is a new file.
        assert landing.rows().keys() >= NEW or by_interval
        assert set(landing.rows().values()) == {1}, f"rewritten at {number}, {alone.trace[number - 1]}: twice"
        assert landing.rows() >= rows
    assert versions == {frozenset(OLD), frozenset(NEW)}


def test_the_steps_find_runs_that_commit_what_they_read_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "refuse_changed", lambda *_: None)
    with pytest.raises(AssertionError, match="twice"):
        test_a_file_written_again_at_any_step_is_there_once("insert", False, monkeypatch)


def test_a_file_that_never_rests_is_told_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = landing_of("insert", False)
    before = landing.rows()
    tries: list[int] = []
    complete = commit.complete_commit

    def changing(*arguments: object, **named: object) -> object:
        tries.append(1)
        rewrite(landing)
        return complete(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("lakehouse.core.operations.write.write.complete_commit", changing)
    with pytest.raises(SourceChangedError, match=r"x\.json changed while being read; nothing was committed, run again"):
        landing.run()
    assert len(tries) == 3
    assert landing.rows() == before
    monkeypatch.undo()
    landing.run()
    assert landing.rows() - before == {**dict.fromkeys(NEW, 1), "y-0": 1}
    assert landing.all_letters() == landing.named_letters()


def test_a_file_that_vanished_after_it_was_read_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = landing_of("insert", False)
    write_batch = run_module.write_batch

    def tidying(*arguments: object) -> object:
        landing.lake.delete("landing/2026-01-01/x.json")
        return write_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "write_batch", tidying)
    landing.run()
    assert landing.rows().keys() >= OLD
