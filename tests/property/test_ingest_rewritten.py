"""A source file is rewritten while a run ingests it: the commit holds one whole version, the one that it records."""

from __future__ import annotations

import json
import os

import pytest

from lakehouse.core.operations.commit import complete as commit
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import SourceChangedError
from lakehouse.platform.ingest import run as run_module
from lakehouse.platform.sources.files import file_source as files
from tests.support.ingested import Landing
from tests.support.killed import Interrupted

OLD, NEW = {"x-0", "x-1", "x-2"}, {"new-0", "new-1"}


def landing_of(operation: str, by_interval: bool) -> Landing:
    """Return a landing zone with a table and with files to ingest."""
    landing = Landing(f"rewritten-{os.getpid()}", operation=operation, by_interval=by_interval)
    landing.land("before", 2, 0, day=5)
    landing.run(day=5, run_id="before")
    landing.land("x", len(OLD), 1)
    landing.land("y", 1, 0)
    return landing


def rewrite(landing: Landing) -> None:
    """Replace the file `x` by one with other rows."""
    lines = [json.dumps({"id": key, "p": "p0", "ts": 2}) for key in sorted(NEW)]
    landing.lake.put("landing/2026-01-01/x.json", "\n".join(lines).encode())


@pytest.mark.parametrize("by_interval", [False, True], ids=["checkpoint", "interval"])
@pytest.mark.parametrize("operation", ["insert", "bulk_insert", "upsert"])
def test_ingestion_commits_one_version_of_a_file_rewritten_at_any_step(
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

        landing.run(Interrupted(landing.store, number, rival, monkeypatch), run_id="interrupted")
        rows = landing.rows()
        landed = frozenset(rows.keys() & (OLD | NEW))
        assert landed in (OLD, NEW), f"rewritten at {number}, {alone.trace[number - 1]}: rows of both versions"
        versions.add(landed)
        landing.run(run_id="again")
        # An interval is ingested once. A run by checkpoint ingests a rewritten file as a new one.
        assert landing.rows().keys() >= NEW or by_interval
        assert set(landing.rows().values()) == {1}, (
            f"rewritten at {number}, {alone.trace[number - 1]}: rows written twice"
        )
        assert landing.rows() >= rows
    assert versions == {frozenset(OLD), frozenset(NEW)}


def test_rewrites_detect_a_run_that_does_not_verify_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "refuse_changed", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="rows written twice"):
        test_ingestion_commits_one_version_of_a_file_rewritten_at_any_step("insert", False, monkeypatch)


def test_ingestion_fails_after_three_tries_if_a_file_keeps_changing(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ingestion_commits_a_file_that_was_deleted_after_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = landing_of("insert", False)
    write_batch = run_module.write_batch

    def deleting(*arguments: object) -> object:
        landing.lake.delete("landing/2026-01-01/x.json")
        return write_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "write_batch", deleting)
    landing.run()
    assert landing.rows().keys() >= OLD
