"""Archive: Hudi and lakehouse archive the same instants, and read and extend archives of each other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, Instant
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.test_writes_to_hudi_tables import BASE, PARTITIONED, WITHOUT_METADATA_TABLE
from tests.support import hudi_rs
from tests.support.archived import assert_same, eager, every_write, seen
from tests.support.hudi import Hudi
from tests.support.tables import batch, row

pytestmark = pytest.mark.jvm

QUIET = {"hoodie.archive.automatic": "false", "hoodie.clean.automatic": "false"}
WITHOUT = {"hoodie__metadata__enable": "false"}
OPTIONS = BASE | PARTITIONED | WITHOUT_METADATA_TABLE


def rows_of(number: int) -> list[dict[str, object]]:
    return [row(f"k{i}", p="abc"[i % 3], ts=number, v=f"{number}") for i in range(number % 3, 6)]


def written_by_hudi(hudi: Hudi, location: str, kind: str, writes: Iterable[int]) -> Table:
    """Write one batch per number with Hudi, with inline compaction but without archiving.

    Number 0 creates the table; number 2 overwrites partitions of a copy-on-write table.
    """
    options = OPTIONS | QUIET | {"hoodie.datasource.write.table.type": kind}
    if kind == "MERGE_ON_READ":
        options |= {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
    for number in writes:
        operation = "insert_overwrite" if number == 2 and kind == "COPY_ON_WRITE" else "upsert"
        chosen = options | {"hoodie.datasource.write.operation": operation}
        hudi.write(location, batch(rows_of(number)), chosen, mode="append" if number else "overwrite")
    return Table.open(location)


def run_hudi_clean(hudi: Hudi, table: Table) -> None:
    hudi.sql("CALL run_clean(table => '{table}', retain_commits => 1)", table=table.location, **WITHOUT)


def run_hudi_archive(hudi: Hudi, location: str) -> None:
    text = (
        f"CALL archive_commits(path => '{location}', min_commits => 2, max_commits => 3, retain_commits => 1, "
        "enable_metadata => false)"
    )
    hudi.sql(text, hoodie__timeline__compaction__batch__size="2", **WITHOUT)


def archived_commits_of_hudi(hudi: Hudi, table: Table) -> set[str]:
    """Return the requested times of the commits that Hudi reads from the archive."""
    text = (
        "CALL show_archived_commits(table => '{table}', limit => 100, start_ts => '20200101000000', "
        "end_ts => '20990101000000')"
    )
    return set(hudi.query(text, table=table.location).column("commit_time").to_pylist())


def names(instants: Iterable[Instant]) -> list[tuple[str, str, str]]:
    return [(i.requested, str(i.action), i.state.name) for i in instants]


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_and_lakehouse_archive_a_table_in_turn(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    location, copy = str(tmp_path / "table"), str(tmp_path / "copy")
    table = written_by_hudi(hudi, location, kind, range(6))
    run_hudi_clean(hudi, table)
    table = written_by_hudi(hudi, location, kind, range(6, 8))
    before, shown = seen(table, ranges=False), assert_hudi_reads_the_same(hudi, table).num_rows

    # Both archive the same instants of the same table.
    shutil.copytree(location, copy)
    outcome = eager(table, **{"hoodie.compact.inline.max.delta.commits": "5"}).services.archive.run()
    assert isinstance(outcome, Archived)
    run_hudi_archive(hudi, copy)
    # Lakehouse keeps the latest clean on the active timeline, because readers derive from it which versions exist.
    newest = table.timeline.where(action=Action.CLEAN).instants[-1]
    theirs = names(Table.open(copy).timeline)
    assert [name for name in names(table.timeline) if name != names([newest])[0] or name in theirs] == theirs
    assert names(table.archived()) == names(Table.open(copy).archived())

    # Hudi reads the archive of lakehouse, and reads the table as before.
    assert_same(seen(table, ranges=False), before)
    assert_same(seen(Table.open(copy), ranges=False), before)
    assert archived_commits_of_hudi(hudi, table) >= {
        i.requested for i in table.archived() if i.action != "replacecommit"
    }
    assert assert_hudi_reads_the_same(hudi, table, past=True).num_rows == shown
    first = every_write(table)[2].completion
    begun = hudi.read_incremental(location, first, every_write(table)[-1].completion)
    ours = table.incremental(first, columns=["id"]).to_arrow()
    assert sorted(begun.column("id").to_pylist()) == sorted(ours.column("id").to_pylist())
    assert hudi_rs.read(location).num_rows == shown

    # Each extends the archive of the other, and archive files are merged in pairs.
    for number in range(8, 20, 4):
        table = written_by_hudi(hudi, location, kind, range(number, number + 2))
        before = seen(table, ranges=False)
        run_hudi_archive(hudi, location)
        assert_same(seen(table, ranges=False), before)
        table.upsert(batch(rows_of(number + 2)))
        table = written_by_hudi(hudi, location, kind, [number + 3])
        run_hudi_clean(hudi, table)
        before = seen(table, ranges=False)
        assert isinstance(eager(table).services.archive.run(force=True), Archived)
        assert_same(seen(table, ranges=False), before)
        assert_hudi_reads_the_same(hudi, table)
    levels = {file.level for file in table.refresh().store.archived_timeline.files()}  # type: ignore[union-attr]
    assert max(levels) >= 1
    assert archived_commits_of_hudi(hudi, table) >= {
        i.requested for i in table.archived() if i.action != "replacecommit"
    }
