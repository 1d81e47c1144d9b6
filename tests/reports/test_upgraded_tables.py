"""Tables that Hudi upgraded from version 6 keep log files that are named after their slice or a pending compaction."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.instant import Action
from tests.support import hudi_rs
from tests.support.archived import assert_same, seen
from tests.support.shared import fixtures
from tests.support.tables import Shape, batch, data_rows, log_files, make_table, row
from tests.support.upgraded import (
    COMPACTED,
    COMPACTIONS,
    PENDING,
    add_rollback,
    named_logs,
    set_property,
    unpacked,
    upgrade,
)

NAMES = ("id", "v", "ts", "p")
LISTING = {"hoodie.metadata.enable": "false"}
#: Snapshots. Hudi 1.2 reads a=3 in the second table until its compaction is executed, and a=4 from then on: the delta
#: commit of a=4 is completed and older than the savepoint, and its log file is named after the pending compaction.
SNAPSHOTS = {
    COMPACTED: [("a", "4", 4, "x"), ("c", "auto", 100, "y"), ("d", "4", 4, "x")],
    PENDING: [("a", "4", 4, "x"), ("c", "7", 7, "y"), ("d", "4", 4, "x")],
}
TABLES = pytest.mark.parametrize("name", [COMPACTED, PENDING])


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(record[name] for name in NAMES) for record in found.select(list(NAMES)).to_pylist())


def change(table: Table, id: str, value: str, ts: int) -> Committed:
    schema = table.schema
    assert schema is not None
    columns = {"id": id, "v": value, "ts": ts, "p": "x"}
    return written(table.upsert(batch([columns], schema)))


def written(outcome: Any) -> Committed:
    assert isinstance(outcome, Committed), outcome
    return outcome


def clean(table: Table) -> bool:
    """Return whether a deep validation finds nothing wrong. Log files of a table and files of Hudi have no filters."""
    return not [found for found in table.validate(deep=True).findings if found.invariant != "file.bloom_absent"]


def updated(**options: str) -> Table:
    """Return a table without metadata table: four keys in two partitions, then updates and a delete, one per commit."""
    shape = Shape(type="MERGE_ON_READ", fills_small_files=False, options=LISTING | options)
    table = make_table(shape)
    table.upsert(batch(row(key, p=place, v="0") for key, place in (("a", "a"), ("b", "a"), ("c", "b"), ("d", "b"))))
    table.upsert(batch([row("a", v="1", ts=2)]))
    table.upsert(batch([row("a", v="2", ts=3), row("c", p="b", v="1", ts=3)]))
    table.delete(batch([row("b")]).select(["id", "p"]))
    return table


@TABLES
def test_snapshot_of_an_upgraded_table_merges_logs_with_version_6_names(name: str, tmp_path: Path) -> None:
    """apache/hudi#12250, apache/hudi#9776: an upgrade keeps log files, and slices are built by completion time."""
    assert rows(Table.open(unpacked(name, tmp_path)).scan().to_arrow()) == SNAPSHOTS[name]


def test_pending_compaction_of_an_upgraded_table_makes_its_logs_readable_for_hudi_rs(tmp_path: Path) -> None:
    """apache/hudi#12250: after the compaction other readers find the log files that are named after it."""
    path = unpacked(PENDING, tmp_path)
    before = rows(hudi_rs.read(path))
    assert ("a", "3", 3, "x") in before, "the log files of the pending compaction are not read"
    assert written(Table.open(path).services.compaction.run()).instant.requested == COMPACTIONS[PENDING]
    assert rows(hudi_rs.read(path)) == rows(Table.open(path).scan().to_arrow()) == SNAPSHOTS[PENDING]


def test_time_travel_and_incremental_reads_of_an_upgraded_table_equal_hudi_rs(tmp_path: Path) -> None:
    """apache/hudi#19983, apache/hudi#12034: log files have blocks of later commits and of rollbacks."""
    path = unpacked(COMPACTED, tmp_path)
    table = Table.open(path)
    writes = table.timeline.writes()
    for requested in (write.requested for write in writes):
        assert rows(table.scan(as_of=requested).to_arrow()) == rows(hudi_rs.read_as_of(path, requested)), requested
    times = ["0" * 17, *sorted(write.completion for write in writes)]
    for start, end in pairwise(times):
        found = table.incremental("earliest" if start == times[0] else start, end).to_arrow()
        assert rows(found) == rows(hudi_rs.read_incremental(path, start, end)), (start, end)
    assert len(times) == 11


@TABLES
def test_change_data_of_an_upgraded_table_has_each_change_once(name: str, tmp_path: Path) -> None:
    """apache/hudi#9776: each commit before the upgrade wrote into log files that have the name of one slice."""
    path = unpacked(name, tmp_path)
    storage = Table.open(path).refresh().env.storage
    set_property(storage, "hoodie.table.cdc.enabled", "true")
    set_property(storage, "hoodie.table.cdc.supplemental.logging.mode", "DATA_BEFORE_AFTER")
    found = Table.open(path).incremental("earliest", format="cdc", columns=["id", "v"]).to_arrow().to_pylist()
    of_a = [tuple(image and image["v"] for image in (one["before"], one["after"])) for one in found if _id(one) == "a"]
    assert of_a == [(None, "1"), ("1", "2"), ("2", "3"), ("3", "4")]
    assert [one["op"] for one in found if _id(one) == "b"] == ["i", "d"]


def _id(change: dict[str, Any]) -> str:
    return str((change["after"] or change["before"])["id"])


@pytest.mark.parametrize("appends", [False, True], ids=["rolled", "appended"])
@pytest.mark.parametrize("kind", ["base", "log"])
def test_upgrade_changes_no_read_of_any_version(kind: str, appends: bool) -> None:
    """apache/hudi#11986: log files of one slice have blocks of several commits, in one file or in several."""
    options = {"hoodie.index.type": "BUCKET", "lakehouse.bucket.inserts": kind} if kind == "log" else {}
    table = updated(**options)
    wanted = seen(table)
    upgrade(table, appends=appends)
    names = [log.instant for log in log_files(table.refresh().env.storage)]
    assert len(names) > len(set(names)) or appends, "the log files of a slice have one instant in their names"
    table = Table.open(table.location, options=LISTING | options, env=table.refresh().env)
    assert_same(seen(table), wanted)
    assert clean(table)


def with_pending_compaction() -> tuple[Table, str]:
    """Return an upgraded table, and its pending compaction, after which log files are named."""
    table = updated()
    upgrade(table)
    scheduled = table.services.compaction.schedule(force=True)
    assert not isinstance(scheduled, NothingToDo)
    table.upsert(batch([row("a", v="3", ts=5), row("c", p="b", v="2", ts=5)]))
    upgrade(table, compaction=scheduled.requested)
    assert len(named_logs(table, scheduled.requested)) == 2
    return Table.open(table.location, options=LISTING, env=table.refresh().env), scheduled.requested


NEWEST = [
    {"id": "a", "p": "a", "v": "3", "ts": 5},
    {"id": "c", "p": "b", "v": "2", "ts": 5},
    {"id": "d", "p": "b", "v": "0", "ts": 1},
]


def newest(table: Table) -> list[dict[str, Any]]:
    return sorted(data_rows(table, ["id", "p", "v", "ts"]), key=lambda record: record["id"])


def test_logs_of_a_pending_compaction_are_read_before_and_after_it_is_executed() -> None:
    """apache/hudi#9776: the log files are named after a base file that does not exist yet."""
    table, compaction = with_pending_compaction()
    wanted = seen(table)
    assert newest(table) == NEWEST
    assert written(table.services.compaction.run()).instant.requested == compaction
    assert newest(table) == NEWEST and clean(table)
    found = seen(table)
    kept = [name for name in wanted if name.startswith("as of")]
    assert {name: found[name] for name in kept} == {name: wanted[name] for name in kept} and len(kept) == 5
    table.services.compaction.run(force=True)
    table.upsert(batch([row("d", p="b", v="0")]))
    assert newest(table) == NEWEST
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    assert newest(table) == NEWEST and not named_logs(table, compaction) and clean(table)


def test_rollback_block_before_the_instant_of_a_time_travel_read_removes_the_rolled_back_rows() -> None:
    """apache/hudi#12034: rows of a rolled back write stay hidden although the rollback is no write of the read."""
    table = updated()
    upgrade(table)
    storage = table.refresh().env.storage
    (last,) = [log for log in log_files(storage) if log.partition == "a" and log.version == 3]
    target = table.timeline.writes().instants[1].requested
    add_rollback(table, last, target, str(int(table.timeline.latest_time()) + 5))
    table = Table.open(table.location, options=LISTING, env=table.refresh().env)
    assert [r["v"] for r in data_rows(table, ["id", "v"], as_of=target) if r["id"] == "a"] == ["0"]


def test_metadata_rebuild_lists_the_logs_of_a_pending_compaction() -> None:
    """apache/hudi#12250: a metadata table that is built meanwhile must list log files of the pending compaction."""
    table, compaction = with_pending_compaction()
    table = Table.open(table.location, env=table.refresh().env)
    table.metadata.rebuild()
    assert table.metadata.validate().ok and newest(table) == NEWEST
    assert written(table.services.compaction.run()).instant.requested == compaction
    assert table.metadata.validate().ok and newest(table) == NEWEST


@pytest.mark.parametrize("completed", [False, True], ids=["inflight", "completed"])
def test_rollback_of_a_compaction_keeps_the_logs_that_are_named_after_it(completed: bool) -> None:
    """apache/hudi#4863: a rollback of a compaction deleted log files with rows of later commits."""
    table, compaction = with_pending_compaction()
    if completed:
        table.services.compaction.run()
    else:
        loaded = table.refresh()
        loaded.store.start(loaded.timeline.find(compaction) or pytest.fail("no plan"), b"")
    table.rollback(compaction)
    assert len(named_logs(table, compaction)) == 2 and newest(table) == NEWEST
    assert table.timeline.where(action=Action.COMPACTION, pending=True).instants[0].requested == compaction
    table.services.compaction.run()
    assert newest(table) == NEWEST


def test_restore_to_a_write_before_the_upgrade_is_refused_before_anything_is_written() -> None:
    """apache/hudi#872: a restore deletes or keeps whole log files, and these have rows of several commits."""
    table, compaction = with_pending_compaction()
    before = table.timeline
    with pytest.raises(UnsupportedError, match="has a name of table version 6"):
        table.restore(before.writes().instants[2].requested)
    with pytest.raises(UnsupportedError, match="has a name of table version 6"):
        table.rollback(before.writes().instants[-1].requested)
    assert table.refresh().timeline == before and newest(table) == NEWEST
    last = before.writes().instants[-1].requested
    table.upsert(batch([row("a", v="lost", ts=9)]))
    table.restore(last)
    assert newest(table) == NEWEST and len(named_logs(table, compaction)) == 2


def test_compaction_that_log_files_are_named_after_is_never_dropped() -> None:
    """apache/hudi#872: without the compaction on the timeline no reader finds these log files."""
    table, compaction = with_pending_compaction()
    storage = table.refresh().env.storage
    planned = [log for log in log_files(storage) if log.instant != compaction]
    storage.delete(planned[0].path)
    skipping = table.with_options({"lakehouse.damaged.files": "skip"})
    with pytest.raises(UnsupportedError, match=f"the compaction {compaction} cannot be dropped"):
        skipping.services.compaction.run()
    assert table.refresh().timeline.find(compaction) is not None and len(named_logs(table, compaction)) == 2


def test_missing_log_of_a_pending_compaction_is_reported_by_validation_and_reads() -> None:
    """apache/hudi#11986: without a committed log file a read would return older rows."""
    table, compaction = with_pending_compaction()
    lost = named_logs(table, compaction)[0]
    table.refresh().env.storage.delete(lost)
    table = Table.open(table.location, options=LISTING, env=table.refresh().env)
    assert [found.path for found in table.validate().findings if found.invariant == "file.present"] == [lost]
    assert table.commits()
    with pytest.raises(CorruptTableError, match="missing"):
        newest(table)


def test_log_compaction_leaves_logs_of_version_6_to_compaction() -> None:
    """apache/hudi#9776: a merged log states the instants that it replaces, and these names do not contain them."""
    table = updated(**{"hoodie.log.compaction.blocks.threshold": "2"})
    upgrade(table)
    table = Table.open(
        table.location, options=LISTING | {"hoodie.log.compaction.blocks.threshold": "2"}, env=table.refresh().env
    )
    assert isinstance(table.services.log_compaction.run(force=True), NothingToDo)


def test_failed_append_of_version_6_loses_no_rows_after_the_upgrade() -> None:
    """apache/hudi#11986: a failed append leaves an incomplete block behind those of completed commits."""
    table = updated()
    wanted = newest(table)
    upgrade(table, appends=True)
    storage = table.refresh().env.storage
    (log,) = [log for log in log_files(storage) if log.partition == "b"]
    whole = storage.get(log.path)
    written_by = table.timeline.writes().instants[2].requested
    storage.put(log.path, whole + whole[:-40].replace(written_by.encode(), b"20990101000000000"))
    table = Table.open(table.location, options=LISTING, env=table.refresh().env)
    assert newest(table) == wanted
    storage.put(log.path, whole[:-40])
    with pytest.raises(CorruptTableError):
        newest(Table.open(table.location, options=LISTING, env=table.refresh().env))


def test_services_of_an_upgraded_table_of_hudi_keep_its_rows(tmp_path: Path) -> None:
    """apache/hudi#12250: compaction, clean, archive and clustering of a table with plans and logs of version 6."""
    path = unpacked(COMPACTED, tmp_path)
    options = LISTING | {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    table = Table.open(path, options=options | {"hoodie.clean.commits.retained": "1"})
    change(table, "a", "5", 500)
    wanted = [("a", "5", 500, "x"), *SNAPSHOTS[COMPACTED][1:]]
    for service in ("compaction", "clean", "archive", "clustering"):
        outcome = table.services.named(service).run(force=True)
        assert not isinstance(outcome, NothingToDo), outcome
        assert rows(Table.open(path, options=options).scan().to_arrow()) == wanted == rows(hudi_rs.read(path)), service
        if service == "archive":
            assert isinstance(outcome, Archived)
    assert clean(table)


def test_fixtures_of_version_6_have_the_tables_of_these_tests() -> None:
    """apache/hudi#12250: the tables were written by Hudi 0.15 and upgraded by Hudi 1.2."""
    assert all(fixtures(f"hudi_v6/{name}.zip").is_file() for name in (COMPACTED, PENDING))
