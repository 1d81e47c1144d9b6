"""Tombstones of deletes: filtering, retention, merging and cost; for arrival orders see property/test_late_rows.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.write.tombstones import load_tombstones
from lakehouse.core.planning.tombstones import (
    LATE_ROWS_KEY,
    TOMBSTONES,
    TOMBSTONES_KEY,
    TombstoneFile,
    Tombstones,
    encode_tombstones,
    files_to_merge,
    known_tombstones,
)
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import DELETED, SCHEMA, Shape, SteadyClock, batch, data_rows, make_env, make_table, row

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
RETENTION = {"lakehouse.delete_retention": "7d"}
Row = dict[str, Any]


def deleted(key: str, ts: int, **values: Any) -> Row:
    """Return a row that deletes its key."""
    return row(key, ts=ts, **values, **{DELETED: True})


def ids(table: Table) -> list[str]:
    """Return the keys of the table."""
    return [r["id"] for r in data_rows(table, ["id"])]


def with_tombstone(**shape: Any) -> Table:
    """Return a table with a tombstone of key d with ordering value 10 in partition a."""
    table = make_table(replace(Shape(options=RETENTION, rows_per_file=100), **shape))
    table.upsert(batch([row("d", ts=5), row("e", ts=5)]))
    table.upsert(batch([deleted("d", 10)]))
    return table


def files_of(table: Table) -> list[str]:
    """Return the names of all tombstone files, including those that no commit names."""
    return table.refresh().env.storage.list_names(TOMBSTONES)


def advance_clock(table: Table, milliseconds: int) -> None:
    """Advance the clock of the table."""
    clock = table.refresh().env.clock
    assert isinstance(clock, SteadyClock)
    clock.now += milliseconds


def test_late_row_is_counted_in_result_commit_and_reason() -> None:
    table = with_tombstone()
    outcome = table.upsert(batch([row("d", ts=7), row("f", ts=7)]))
    assert isinstance(outcome, Committed) and (outcome.late_rows_dropped, outcome.rows) == (1, 1)
    assert table.commits()[-1][1].extra[LATE_ROWS_KEY] == "1"
    nothing = table.insert(batch([row("d", ts=7), row("d", ts=8)]))
    assert isinstance(nothing, NothingToDo) and nothing.late_rows_dropped == 2
    assert "older than a delete" in nothing.reason
    assert ids(table) == ["e", "f"]


def test_tie_goes_to_the_row_that_arrives_after_the_delete() -> None:
    table = with_tombstone()
    assert table.upsert(batch([row("d", ts=10)])).late_rows_dropped == 0
    assert ids(table) == ["d", "e"]


def test_flagged_delete_without_ordering_value_deletes_the_row_and_writes_no_tombstone() -> None:
    table = with_tombstone()
    table.upsert(batch([{**deleted("e", 0), "ts": None}]))
    assert ids(table) == []
    assert table.upsert(batch([row("e", ts=1)])).late_rows_dropped == 0
    assert ids(table) == ["e"]


@pytest.mark.parametrize(
    ("type", "index", "options"),
    [
        *(
            (type, index, {})
            for index in ("SIMPLE", "BUCKET", "GLOBAL_SIMPLE")
            for type in ("COPY_ON_WRITE", "MERGE_ON_READ")
        ),
        ("MERGE_ON_READ", "BUCKET", {BUCKET_ENGINE: CONSISTENT_HASHING}),
    ],
)
def test_delete_by_key_has_the_ordering_value_of_the_stored_row(type: str, index: str, options: dict[str, str]) -> None:
    table = with_tombstone(type=type, index=index, new_buckets="log", options={**RETENTION, **options})
    table.upsert(batch([row(f"k{number}", p="ab"[number % 2], ts=number, v="first") for number in range(20)]))
    keys = [f"k{number}" for number in range(10)]
    assert isinstance(table.delete([*keys, "d", "unknown"]), Committed)
    late = table.upsert(batch([row(f"k{n}", p="ab"[n % 2], ts=n - 1) for n in range(10)]))
    assert (late.late_rows_dropped, ids(table)) == (10, ["e", *(f"k{number}" for number in range(10, 20))])
    # A key without a stored row gets no tombstone.
    newer = batch([row("k3", p="b", ts=4, v="newer"), row("unknown", ts=0), row("k4", ts=3, v="late")])
    assert table.upsert(newer).late_rows_dropped == 1
    for _ in range(2):
        shown = {r["id"]: r["v"] for r in data_rows(table, ["id", "v"])}
        assert len(shown) == 13 and (shown["k3"], shown["unknown"], "k4" in shown) == ("newer", None, False)
        if type == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
    nothing = table.delete(["no such key"])
    assert isinstance(nothing, NothingToDo) and nothing.reason == "no stored row matches the batch"


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_delete_with_ordering_column_keeps_newer_rows_and_writes_a_tombstone(type: str) -> None:
    table = with_tombstone(type=type)
    table.upsert(batch([row("new", ts=20), row("old", ts=3), row("old", p="b", ts=3)]))
    table.delete(batch([row("new", ts=10), row("old", ts=10)]).select(["id", "p", "ts"]))
    assert [(r["id"], r["p"]) for r in data_rows(table, ["id", "p"])] == [("e", "a"), ("new", "a"), ("old", "b")]
    # Without partition columns the delete applies to all partitions.
    table.delete(batch([row("old", ts=10)]).select(["id", "ts"]))
    assert table.upsert(batch([row("old", p=p, ts=9) for p in "abc"])).late_rows_dropped == 3
    assert ids(table) == ["e", "new"]


def test_delete_where_writes_tombstones_with_the_ordering_values_of_stored_rows() -> None:
    table = with_tombstone()
    table.delete_where("id = 'e'")
    assert table.upsert(batch([row("e", ts=4)])).late_rows_dropped == 1
    table.upsert(batch([row("e", ts=6)]))
    assert ids(table) == ["e"]


def test_tombstones_are_kept_by_compaction_clustering_and_archive() -> None:
    table = with_tombstone(type="MERGE_ON_READ")
    for number in range(6):
        table.upsert(batch([row("e", ts=11 + number)]))
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    keeps = {"hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2", "hoodie.clean.commits.retained": "1"}
    table.with_options(keeps).services.clean.run(force=True)
    table.with_options(keeps).services.archive.run(force=True)
    assert table.archived()
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1
    assert ids(table) == ["e"]


def test_tombstones_are_read_from_archived_commits_if_later_commits_name_none() -> None:
    table = with_tombstone()
    silent = {"lakehouse.delete_retention": ""}
    for number in range(6):
        table.upsert(batch([row("e", ts=11 + number)]), options=silent)
    keeps = {"hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2", "hoodie.clean.commits.retained": "1"}
    table.with_options(keeps).services.clean.run(force=True)
    table.with_options(keeps).services.archive.run(force=True)
    assert all(TOMBSTONES_KEY not in metadata.extra for _, metadata in table.commits())
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1


def test_tombstone_expires_after_the_retention_and_its_file_is_deleted() -> None:
    table = with_tombstone()
    advance_clock(table, WEEK_MS - HOUR_MS)
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1
    table.services.clean.run(force=True)
    assert len(files_of(table)) == 1
    advance_clock(table, HOUR_MS)
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 0
    assert ids(table) == ["d", "e"]
    advance_clock(table, HOUR_MS)
    table.services.clean.run(force=True)
    assert files_of(table) == []


def test_tombstones_of_an_undone_write_are_ignored_after_a_restore() -> None:
    table = with_tombstone()
    kept = table.commits()[0][0].requested
    table.restore(kept)
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 0
    assert data_rows(table, ["id", "ts"]) == [{"id": "d", "ts": 7}, {"id": "e", "ts": 5}]


def test_rollback_removes_only_the_tombstones_of_its_write() -> None:
    table = with_tombstone()
    outcome = table.upsert(batch([deleted("e", 10)]))
    assert isinstance(outcome, Committed)
    table.rollback(outcome.instant.requested)
    assert table.upsert(batch([row("d", ts=7), row("e", ts=7)])).late_rows_dropped == 1
    assert data_rows(table, ["id", "ts"]) == [{"id": "e", "ts": 7}]


@pytest.mark.parametrize("verb", ["delete_partitions", "insert_overwrite", "insert_overwrite_table"])
def test_overwrite_of_a_partition_removes_its_tombstones(verb: str) -> None:
    table = with_tombstone()
    table.upsert(batch([row("x", p="b", ts=5), deleted("y", 10, p="b")]))
    argument = ["a"] if verb == "delete_partitions" else batch([row("g")])
    getattr(table, verb)(argument)
    outcome = table.upsert(batch([row("d", ts=7), row("y", p="b", ts=7)]))
    assert outcome.late_rows_dropped == (0 if verb == "insert_overwrite_table" else 1)
    assert "d" in ids(table)
    # A delete after the overwrite has a tombstone again.
    table.upsert(batch([deleted("d", 8)]))
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1


def test_overwrites_are_stored_only_while_they_affect_tombstones() -> None:
    table = with_tombstone()

    def stored_overwrites() -> dict[str, str]:
        overwritten: dict[str, str] = json.loads(table.commits()[-1][1].extra[TOMBSTONES_KEY])["wiped"]
        return overwritten

    table.upsert(batch([deleted("x", 10), deleted("x", 10, p="c"), row("y", p="b")]))
    table.delete_partitions(["b"])
    assert stored_overwrites().keys() == {"b"}
    advance_clock(table, WEEK_MS // 2)
    table.upsert(batch([deleted("x", 11), deleted("x", 11, p="c")]))
    assert stored_overwrites().keys() == {"b"}
    advance_clock(table, WEEK_MS // 2)
    table.upsert(batch([deleted("x", 12), row("y", p="b")]))
    assert stored_overwrites() == {}


def test_tombstone_files_are_merged_after_many_deletes() -> None:
    table = make_table(Shape(options=RETENTION, rows_per_file=1000))
    table.upsert(batch([row("stays", ts=1)]))
    for number in range(24):
        table.upsert(batch([deleted(f"k{number}", 10), row("stays", ts=number)]))
    loaded = table.refresh()
    known = load_tombstones(loaded, loaded.env.clock.now_ms(), WEEK_MS)
    assert len(known.files) <= 10 and sum(file.rows for file in known.files) == 24
    late = table.upsert(batch([row(f"k{number}", ts=9) for number in range(24)]))
    assert late.late_rows_dropped == 24


def test_late_rows_are_dropped_with_little_memory_and_many_partitions() -> None:
    table = make_table(Shape(options=RETENTION, rows_per_file=10_000, budget=1 << 20))
    partitions = [f"p{n % 20}" for n in range(2000)]
    deletes = pa.table({"id": [f"k{n}" for n in range(2000)], "p": partitions, "ts": pa.array([10] * 2000, pa.int64())})
    table.upsert(batch([row("z", p="p0")]))
    table.delete(deletes)
    rows = batch([row(f"k{n}", p=p, ts=9 + 2 * (n % 2)) for n, p in enumerate(partitions)])
    outcome = table.upsert(rows)
    assert outcome.late_rows_dropped == 1000
    assert table.scan(["id"]).count() == 1001


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_late_row_is_absent_from_snapshot_incremental_and_change_reads(type: str) -> None:
    env = make_env()
    table = Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        schema=SCHEMA,
        table_type=type,
        cdc="DATA_BEFORE_AFTER",
        options=RETENTION,
        env=env,
    )
    table.upsert(batch([row("d", ts=5), row("e", ts=5)]))
    table.upsert(batch([deleted("d", 10)]))
    before = table.timeline.writes().by_completion()[-1].completion
    table.upsert(batch([row("d", ts=7), row("e", ts=7)]))
    changes = table.incremental(before, format="cdc").to_arrow().to_pylist()
    assert [(change["op"], change["after"]["id"]) for change in changes] == [("u", "e")]
    assert table.incremental(before).to_arrow().column("id").to_pylist() == ["e"]
    if type == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    assert ids(table) == table.scan(read_optimized=True).to_arrow().column("id").to_pylist() == ["e"]


PARTIAL = {"lakehouse.write.partial.update": "true"}


@pytest.mark.parametrize("options", [{}, RETENTION], ids=["as-hudi", "with-retention"])
def test_newer_partial_update_of_a_key_deleted_in_a_log_inserts_a_full_row(options: dict[str, str]) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != DELETED])
    table = make_table(
        Shape(type="MERGE_ON_READ", options=options, rows_per_file=100, fills_small_files=False), schema=schema
    )
    table.upsert(batch([row("d", ts=5, v="first"), row("e", ts=5, v="first", amount=2.5)], schema))
    if options:
        table.delete(batch([row("d", ts=10)], schema).select(["id", "p", "ts"]))
    else:
        # A batch with a delete column is always written with full rows.
        table.upsert(batch([row("d", ts=10)], schema).append_column(DELETED, pa.array([True])))
    columns = ["id", "region", "p", "at", "ts", "v"]
    for ts, shown in ((7, [("e", 2.5)]), (12, [("d", None), ("e", 2.5)])):
        update = batch([row("d", ts=ts, v="part"), row("e", ts=ts, v="part")], schema).select(columns)
        table.upsert(update, options=PARTIAL)
        assert [(r["id"], r["amount"]) for r in data_rows(table, ["id", "amount"])] == shown
    table.services.compaction.run(force=True)
    assert [(r["id"], r["amount"]) for r in data_rows(table, ["id", "amount"])] == [("d", None), ("e", 2.5)]


def test_missing_tombstone_file_raises_an_error_and_late_rows_do_not_return() -> None:
    table = with_tombstone()
    loaded = table.refresh()
    loaded.env.storage.delete_many([f"{TOMBSTONES}/{name}" for name in files_of(table)])
    with pytest.raises(CorruptTableError, match=r"\.tombstones.* is missing.*delete_retention= \(empty\)"):
        table.upsert(batch([row("d", ts=7)]))
    table.upsert(batch([row("d", ts=7)]), options={"lakehouse.delete_retention": ""})
    assert ids(table) == ["d", "e"]


def test_retention_is_a_table_property_that_all_writers_use() -> None:
    table = with_tombstone()
    again = Table.open(table.location, env=table.refresh().env)
    assert again.config.raw["lakehouse.delete_retention"] == "7d"
    assert again.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1


def test_retention_of_a_very_long_duration_is_accepted() -> None:
    table = make_table(Shape(options={"lakehouse.delete_retention": "365000d"}))
    table.upsert(batch([row("e"), deleted("d", 10)]))
    assert table.upsert(batch([row("d", ts=7)])).late_rows_dropped == 1


def test_retention_is_refused_without_event_time_ordering() -> None:
    with pytest.raises(UserError, match="orders versions by commit time"):
        make_table(Shape(merge="commit", options=RETENTION))
    with pytest.raises(UserError, match="orders versions by commit time"):
        make_table(Shape(merge="commit_ordered")).upsert(batch([row("a")]), options=RETENTION)
    with pytest.raises(UserError, match="is not a duration"):
        make_table(Shape(options={"lakehouse.delete_retention": "a week"}))


SPEC = "table: t\nlocation: lake/t\nrecord_key: id\n"


def test_spec_declares_retention_only_together_with_ordering() -> None:
    spec = parse_spec(SPEC + "ordering: ts\ndelete_retention: 36h\n", source="t.yaml")
    assert spec.write_options()["lakehouse.delete_retention"] == "36h"
    assert spec.to_mapping()["delete_retention"] == "36h"
    for wrong, why in (
        ("delete_retention: 7d\n", "needs 'ordering'"),
        ("ordering: ts\ndelete_retention: soon\n", "is not a duration"),
        ("ordering: ts\ndelete_retention: 7d\ningest: {path: x, operation: bulk_insert}\n", "compares no rows"),
        ("ordering: ts\ndelete_retention: 7d\nmerge_mode: COMMIT_TIME_ORDERING\n", "needs 'ordering'"),
        ("ordering: ts\ndelete_retention: 7d\noptions: {lakehouse.delete_retention: 1d}\n", "declared twice"),
    ):
        with pytest.raises(UserError, match=why):
            parse_spec(SPEC + wrong, source="t.yaml")


def counted(tmp_path: Path, options: dict[str, str]) -> tuple[Table, CountingStorage]:
    """Return a table on a storage that counts requests."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    table = make_table(Shape(rows_per_file=100, options=options), env=make_env(storage=storage), schema=SCHEMA)
    table.upsert(batch([row("e", ts=5)]))
    return table, storage


def upsert_requests(storage: CountingStorage, table: Table, rows: list[Row]) -> dict[str, int]:
    """Return the number of requests of an upsert, by verb."""
    storage.reset()
    table.upsert(batch(rows))
    return storage.counts()


def test_retention_adds_only_the_requests_for_tombstone_files(tmp_path: Path) -> None:
    plain, counts = counted(tmp_path / "off", {})
    table, counter = counted(tmp_path / "on", RETENTION)
    rows = [row("e", ts=6), row("f", ts=6)]
    base = upsert_requests(counts, plain, rows)
    assert upsert_requests(counter, table, rows) == base
    plain_delete, retained_delete = (
        upsert_requests(counts, plain, [deleted("e", 7)]),
        upsert_requests(counter, table, [deleted("e", 7)]),
    )
    # The rows of a small write stay in memory, so the tombstone file needs no other request.
    assert retained_delete == plain_delete | {"PUT": plain_delete["PUT"] + 1}
    # Later writes read the tombstone file without another LIST.
    plain_requests, retention_requests = (
        upsert_requests(counts, plain, [row("f", ts=8)]),
        upsert_requests(counter, table, [row("f", ts=8)]),
    )
    assert retention_requests["GET"] > plain_requests["GET"] and retention_requests["LIST"] == plain_requests["LIST"]
    assert upsert_requests(counter, table, [row("f", ts=9)]) == retention_requests
    # Both metadata tables have the same number of log files, which the first write into a partition reads.
    assert upsert_requests(counts, plain, [row("f", ts=9)]) == plain_requests
    # Tombstone files of other partitions are not opened.
    elsewhere = [row("g", p="b", ts=8)]
    assert upsert_requests(counter, table, elsewhere) == upsert_requests(counts, plain, elsewhere)


def file(instant: int, rows: int, first: str = "a", last: str = "z") -> TombstoneFile:
    """Return a tombstone file of this instant that never expires in these tests."""
    return TombstoneFile(name=f"{instant:017}_9999999999999_0-0-0.parquet", rows=rows, first=first, last=last)


def commit(at: int, known: Tombstones | None, action: Action = Action.COMMIT, **more: Any) -> tuple[Instant, Any]:
    """Return a write requested at `at` and completed 5 later, whose metadata contains `known`."""
    extra = {} if known is None else {TOMBSTONES_KEY: encode_tombstones(known)}
    instant = Instant(requested=f"{at:017}", action=action, state=State.COMPLETED, completed=f"{at + 5:017}")
    return instant, CommitMetadata(operation=more.pop("operation", "UPSERT"), extra=extra, **more)


def test_tombstones_of_concurrent_writers_are_combined() -> None:
    first = commit(10, Tombstones(files=(file(10, 1),)))
    one = commit(20, Tombstones(up_to=f"{15:017}", files=(file(10, 1), file(20, 1))))
    other = commit(21, Tombstones(up_to=f"{15:017}", files=(file(21, 9),)))
    known = known_tombstones([other, one, first], Tombstones())
    assert {found.instant for found in known.files} == {f"{20:017}", f"{21:017}"}
    # The second write merged the first file; the last write still names it.
    assert known.is_complete


def test_overwrite_removes_only_earlier_tombstones() -> None:
    overwrite = commit(30, None, Action.REPLACECOMMIT, operation="DELETE_PARTITION", replaced={"a": ("f",)})
    of_overwritten, of_both, later = file(20, 1, "a", "a"), file(19, 2, "a", "b"), file(40, 1, "a", "a")
    # The last write does not include the overwrite.
    after = commit(40, Tombstones(up_to=f"{25:017}", files=(of_overwritten, of_both, later)))
    known = known_tombstones([after, overwrite], Tombstones()).counting(0)
    assert known.files == (of_both, later)
    assert known.overwritten == {"a": f"{30:017}"}
    everything = commit(50, None, Action.REPLACECOMMIT, operation="INSERT_OVERWRITE_TABLE")
    assert known_tombstones([everything, after], Tombstones()).counting(0).files == ()


def test_tombstone_files_of_similar_size_are_merged() -> None:
    small, large = [file(n, 3) for n in range(9)], [file(100 + n, 1000) for n in range(3)]
    assert files_to_merge([*small, *large]) == [tuple(small)]
    assert files_to_merge([*small[:7], *large]) == []


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        json.dumps({"up_to": "", "files": [["../../etc/passwd", 1, "a", "b"]], "wiped": {}, "wiped_all": ""}),
        json.dumps({"up_to": "", "files": "x", "wiped": {}, "wiped_all": ""}),
        json.dumps([]),
    ],
)
def test_commit_with_invalid_tombstone_metadata_is_refused(text: str) -> None:
    instant, metadata = commit(10, None)
    with pytest.raises(CorruptTableError):
        known_tombstones([(instant, replace(metadata, extra={TOMBSTONES_KEY: text}))], Tombstones())
