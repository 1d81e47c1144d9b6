"""Cleanup after ended writes: keeps files of archived commits, and deletes files of rolled back writes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakehouse.core.files.stage.markers import MarkerBatch, create_marker
from lakehouse.core.format.file_names import marker_name, parse_base_file
from lakehouse.core.operations.commit.cleanup import clean_up_ended_writes
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.spec.options.parser import parse_options
from tests.support.archived import eager
from tests.support.tables import Shape, batch, data_rows, make_table, row

COMMITS = 8


def leave_markers(storage: Storage, instant: str, files: list[str], kind: str) -> None:
    """Create the markers of a write again, as a crash right after the commit leaves them."""
    names = [marker_name(path, "CREATE") for path in files]
    if kind == "batch":
        MarkerBatch(storage, instant, 0).write(names)
    else:
        for name in names:
            create_marker(storage, instant, name)


def files_of(storage: Storage) -> dict[str, list[str]]:
    """Return the base files by the instant in their names."""
    found: dict[str, list[str]] = {}
    for file in storage.list(""):
        base = parse_base_file(file.name, "", 0)
        if base is not None:
            found.setdefault(base.instant, []).append(file.path)
    return found


@pytest.mark.parametrize("kind", ["batch", "direct"])
def test_cleanup_keeps_files_of_an_archived_commit_whose_markers_were_left(kind: str) -> None:
    table = eager(make_table(Shape(keys="simple")))
    for number in range(COMMITS):
        table.bulk_insert(batch([row(f"k{number}", v=str(number), p=f"p{number}")]))
    table.services.archive.run()
    rows, env = data_rows(table, ["id", "v"]), table.refresh().env
    archived, files = table.archived(), files_of(env.storage)
    assert len(archived) >= COMMITS // 2
    for instant in archived:
        leave_markers(env.storage, instant.requested, files[instant.requested], kind)
    clean_up_ended_writes(table.refresh(), parse_options({}).transaction)
    assert files_of(env.storage) == files
    assert data_rows(Table.open(env.storage.root, env=env), ["id", "v"]) == rows


def test_cleanup_deletes_only_leftover_files_of_a_rolled_back_write() -> None:
    table = make_table(Shape(keys="simple"))
    table.bulk_insert(batch([row("k", v="kept")]))
    lost = table.bulk_insert(batch([row("l", v="lost")])).instant.requested
    env = table.refresh().env
    before: Mapping[str, list[str]] = files_of(env.storage)
    (path,) = before[lost]
    data = env.storage.get(path)
    table.rollback(lost)
    env.storage.put(path, data)
    leave_markers(env.storage, lost, [path], "batch")
    clean_up_ended_writes(table.refresh(), parse_options({}).transaction)
    assert files_of(env.storage) == {instant: files for instant, files in before.items() if instant != lost}
