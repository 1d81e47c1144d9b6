"""Cleanup of a suspended write that another process considered expired: the write raises a retryable error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.files.stage.markers import marker_directory
from lakehouse.core.format.file_names import MARKERS_TYPE
from lakehouse.core.storage import local
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from tests.support.tables import batch, row


def made(tmp_path: Path) -> Table:
    """Return a merge-on-read table on a local disk with a base file and a log."""
    storage = LocalStorage(str(tmp_path / "table"))
    table = Table.create(
        storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        options={"hoodie.clean.failed.writes.policy": "LAZY"},
        env=Env(storage=storage),
    )
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2)]))
    return table


def clean_up_while_renaming(monkeypatch: pytest.MonkeyPatch, suffix: str, cleanup: Callable[[], None]) -> list[str]:
    """Run `cleanup` once, after a file was written and before it is renamed to its final name."""
    give_name, cleaned = local._give_name, []

    def give(temporary: str, target: str) -> None:
        if target.endswith(suffix) and not cleaned:
            cleaned.append(target)
            cleanup()
        give_name(temporary, target)

    monkeypatch.setattr(local, "_give_name", give)
    return cleaned


def delete_markers(table: Table) -> None:
    """Delete the markers of all pending instants, including temporary files, like the cleanup of expired writes."""
    storage = table.refresh().env.storage
    for instant in table.refresh().timeline.where(pending=True):
        storage.delete_many([file.path for file in storage.list(marker_directory(instant.requested))])


@pytest.mark.parametrize("verb", ["upsert", "bulk_insert", "compaction", "clustering"])
def test_cleaned_up_writer_raises_a_retryable_error_and_the_retry_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    table = made(tmp_path)
    rows = batch([row("k", v="newest", ts=3)])
    verbs: dict[str, Callable[[], object]] = {
        "upsert": lambda: table.upsert(rows),
        "bulk_insert": lambda: table.bulk_insert(rows),
        "compaction": lambda: table.services.compaction.run(force=True),
        "clustering": lambda: table.services.clustering.run(force=True),
    }
    other = Table.open(table.location)
    cleaned = clean_up_while_renaming(monkeypatch, MARKERS_TYPE, lambda: delete_markers(other))
    with pytest.raises(RetryableError, match="was removed while it was written"):
        verbs[verb]()
    assert len(cleaned) == 1
    verbs[verb]()
    assert table.validate().findings == ()


def test_rolled_back_writer_raises_an_error_that_names_the_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path)
    other = Table.open(table.location)

    def roll_back() -> None:
        (pending,) = other.refresh().timeline.where(pending=True)
        other.rollback(pending.requested, force=True)
        delete_markers(other)

    cleaned = clean_up_while_renaming(monkeypatch, MARKERS_TYPE, roll_back)
    with pytest.raises(RetryableError):
        table.upsert(batch([row("k", v="newest", ts=3)]))
    assert len(cleaned) == 1
