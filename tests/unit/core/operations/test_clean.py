"""The clean service: deleted and kept files, readable versions, and concurrent cleans."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.operations.undo import savepoint as savepoint_operation
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action, Instant, State
from tests.support.tables import Shape, base_files, batch, data_rows, log_files, make_table, row, strays

TWO = {"hoodie.clean.commits.retained": "2"}
VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "2"}
KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")


def opened(table: Table, options: Mapping[str, str]) -> Table:
    """Return the table opened again with these options and the same environment."""
    return Table.open(table.location, options=options, env=table.refresh().env)


def updated(
    times: int,
    kind: str = "COPY_ON_WRITE",
    options: Mapping[str, str] = TWO,
    env: Env | None = None,
    *,
    metadata: bool = True,
) -> Table:
    """Return a table of two partitions; partition a was updated `times` times."""
    created = {"hoodie.metadata.enable": str(metadata).lower()}
    table = make_table(Shape(type=kind, rows_per_file=1_000, options=created), env=env)
    table.insert(batch([row("k0", v="v0"), row("k9", p="b", v="v0")]))
    for number in range(1, times + 1):
        table.upsert(batch([row("k0", ts=number + 1, v=f"v{number}")]))
        if kind == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
    return opened(table, options)


def files(table: Table) -> set[str]:
    """Return the paths of the existing data files."""
    storage = table.refresh().env.storage
    return {file.path for file in (*base_files(storage), *log_files(storage))}


def cleaned(table: Table, **call: Any) -> Cleaned:
    """Run a clean and return its outcome."""
    outcome = table.services.clean.run(**call)
    assert isinstance(outcome, Cleaned)
    return outcome


def writes(table: Table) -> list[str]:
    return [instant.requested for instant in table.timeline.writes()]


def versions(table: Table) -> dict[str, Any]:
    """Return the rows as of each write that is still readable."""
    found = {}
    for requested in writes(table):
        try:
            found[requested] = data_rows(table, ["id", "v"], as_of=requested)
        except UserError:
            continue
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_clean_keeps_retained_commits_readable_and_deletes_older_files(kind: str) -> None:
    table = updated(5, kind)
    before, there = versions(table), files(table)
    outcome = cleaned(table)
    assert outcome.metadata.earliest == writes(table)[-2]
    assert files(table) == there - set(outcome.metadata.deleted) and outcome.files > 0
    after = versions(table)
    assert set(after) >= set(writes(table)[-2:])
    assert after == {requested: before[requested] for requested in after}
    assert strays(table.refresh().env.storage) == []
    # A clean without a write since the last one has nothing to do.
    assert isinstance(table.services.clean.run(force=True), NothingToDo)


def test_clean_keeps_one_slice_before_the_earliest_retained_commit_like_hudi() -> None:
    table = updated(4)
    instants = writes(table)
    cleaned(table)
    assert sorted(base.instant for base in base_files(table.refresh().env.storage) if base.partition == "a") == [
        *instants[-3:]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_clean_keeps_latest_file_versions(kind: str) -> None:
    table = updated(4, kind, VERSIONS)
    outcome = cleaned(table)
    assert (
        outcome.metadata.earliest == "" and outcome.metadata.partitions["a"].policy == VERSIONS["hoodie.clean.policy"]
    )
    assert len([base for base in base_files(table.refresh().env.storage) if base.partition == "a"]) == 2
    assert data_rows(table, ["id", "v"]) == [{"id": "k0", "v": "v4"}, {"id": "k9", "v": "v0"}]
    table.insert_overwrite(batch([row("k1", v="new")]))
    assert "a" in cleaned(table).metadata.partitions
    assert len([base for base in base_files(table.refresh().env.storage) if base.partition == "a"]) == 1


def test_clean_keeps_latest_hours() -> None:
    table = updated(2, options={"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": "2"})
    assert isinstance(table.services.clean.run(), NothingToDo), "all writes are at most two hours old"
    clock = table.refresh().env.clock
    clock.sleep(3 * 3600)
    assert isinstance(table.services.clean.run(), NothingToDo), "all writes are older, so none is the earliest retained"
    table.upsert(batch([row("k0", ts=8, v="v8")]))
    clock.sleep(3600)
    table.upsert(batch([row("k0", ts=9, v="v9")]))
    assert cleaned(table).metadata.earliest == writes(table)[-2]
    assert set(versions(table)) == set(writes(table)[-3:]), "the slice before the earliest retained commit is kept"


def test_clean_does_not_block_active_writers() -> None:
    table = updated(3)
    loaded = table.refresh()
    policy = table.services.policies.transaction
    pending = loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    heartbeat = Heartbeat(loaded.env, policy)
    heartbeat.start(pending.requested)
    lazy = opened(table, TWO | {"hoodie.clean.failed.writes.policy": "LAZY"})
    for number in range(3):
        lazy.upsert(batch([row("k0", ts=20 + number, v="later")]))
    # The writer reads the version of the table at its start.
    earliest = writes(table)[3]
    assert earliest < pending.requested and cleaned(lazy).metadata.earliest == earliest
    assert data_rows(lazy, ["v"], as_of=pending.requested) == [{"v": "v0"}, {"v": "v3"}]
    heartbeat.discard()


def test_clean_rolls_back_failed_writes_first_under_the_lazy_policy() -> None:
    table = updated(3)
    loaded = table.refresh()
    pending = loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    lazy = opened(table, TWO | {"hoodie.clean.failed.writes.policy": "LAZY"})
    lazy.upsert(batch([row("k0", ts=20, v="later")]))
    assert cleaned(lazy).metadata.earliest == writes(table)[-2] > writes(table)[0]
    assert table.timeline.find(pending.requested) is None


@pytest.mark.parametrize("kind", KINDS)
def test_clean_keeps_the_files_of_savepoints(kind: str) -> None:
    table = updated(5, kind)
    kept = table.savepoint(writes(table)[2])
    assert not isinstance(kept, NothingToDo)
    expected = data_rows(table, ["id", "v"], as_of=kept.requested)
    outcome = cleaned(table)
    assert outcome.metadata.extra == {"savepointed_timestamps": kept.requested}
    assert data_rows(table, ["id", "v"], as_of=kept.requested) == expected
    with pytest.raises(UserError, match=f"or as of a savepoint \\({kept.requested}\\)"):
        data_rows(table, as_of=writes(table)[1])
    # After the savepoint is deleted, its files are deleted even from partitions without later writes.
    table.delete_savepoint(kept.requested)
    table.upsert(batch([row("k9", p="b", ts=30)]))
    later = cleaned(table)
    names = {path.rpartition("/")[2] for path in later.metadata.deleted}
    assert names & {name for names in kept.metadata.files.values() for name in names}


def test_clean_keeps_the_files_of_pinned_instants() -> None:
    table = updated(5)
    pin = writes(table)[2]
    expected = data_rows(table, ["id", "v"], as_of=pin)
    assert cleaned(table, pinned=[pin]).metadata.extra == {"lakehouse.pinned_timestamps": pin}
    assert data_rows(table, ["id", "v"], as_of=pin) == expected
    assert isinstance(table.services.clean.run(pinned=[pin], force=True), NothingToDo)
    assert cleaned(table, force=True).files == 1, "without the pin the file is deleted"
    with pytest.raises(UserError, match=f"cannot be read as of {pin} any more: cleans removed 1 of its files"):
        data_rows(table, as_of=pin)


def test_clean_keeps_pinned_files_of_an_older_plan() -> None:
    table = updated(5)
    pin = writes(table)[2]
    expected = data_rows(table, ["id", "v"], as_of=pin)
    planned = table.services.clean.schedule()
    assert isinstance(planned, Instant)
    outcome = cleaned(table, pinned=[pin])
    assert (
        outcome.instant.requested == planned.requested and outcome.metadata.extra["lakehouse.pinned_timestamps"] == pin
    )
    assert data_rows(table, ["id", "v"], as_of=pin) == expected
    assert cleaned(table, force=True).files == 1


def test_clean_deletes_replaced_groups_and_empty_partitions_that_no_version_reads() -> None:
    table = updated(1)
    table.delete_partitions(["a"])
    replaced = writes(table)[-1]
    before = data_rows(table, ["id"], as_of=writes(table)[-2])
    table.upsert(batch([row("k9", p="b", ts=2)]))
    assert isinstance(table.services.clean.run(), NothingToDo)
    assert data_rows(table, ["id"], as_of=writes(table)[-3]) == before, "the previous version is readable"
    table.upsert(batch([row("k9", p="b", ts=3)]))
    outcome = cleaned(table)
    assert outcome.metadata.partitions["a"].is_deleted and outcome.metadata.earliest > replaced
    assert not [file for file in table.refresh().env.storage.list("a")]
    assert data_rows(table, ["id"]) == [{"id": "k9"}]
    table.insert(batch([row("k7", v="again")]))
    assert data_rows(table, ["id"]) == [{"id": "k7"}, {"id": "k9"}]


def test_clean_lists_a_partition_deleted_since_the_last_clean() -> None:
    table = updated(4)
    cleaned(table)
    table.delete_partitions(["a"])
    for number in range(3):
        table.upsert(batch([row("k9", p="b", ts=2 + number)]))
    outcome = cleaned(table)
    assert outcome.metadata.partitions["a"].is_deleted and not table.refresh().env.storage.list("a")


def test_scan_planned_before_a_clean_reads_retained_versions() -> None:
    table = updated(5)
    plans = {at: table.scan(["id", "v"], as_of=at) for at in writes(table)[-2:]}
    planned = {at: (scan.plan(), scan.to_arrow().to_pylist()) for at, scan in plans.items()}
    cleaned(table)
    for plan, rows in planned.values():
        assert [found for rows_of in plan.batches() for found in rows_of.to_pylist()] == rows


def test_clean_keeps_an_empty_partition_while_a_write_is_pending() -> None:
    table = updated(1)
    table.delete_partitions(["a"])
    for number in range(3):
        table.upsert(batch([row("k9", p="b", ts=2 + number)]))
    loaded = table.refresh()
    planned = table.services.clean.schedule()
    assert isinstance(planned, Instant)
    loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    outcome = cleaned(table)
    assert not outcome.metadata.partitions["a"].is_deleted
    assert [file.name for file in loaded.env.storage.list("a")] == [".hoodie_partition_metadata"]


def test_clean_keeps_slices_of_a_pending_compaction() -> None:
    table = make_table(Shape(type="MERGE_ON_READ", rows_per_file=1_000))
    table.insert(batch([row("k0", v="v0")]))
    table.upsert(batch([row("k0", ts=2, v="v1")]))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    for number in range(4):
        table.upsert(batch([row("k0", ts=3 + number, v=f"v{2 + number}")]))
    for options in (TWO, VERSIONS | {"hoodie.clean.fileversions.retained": "1"}):
        assert isinstance(opened(table, options).services.clean.run(force=True), NothingToDo)
    assert isinstance(table.services.compaction.run(), Committed)
    assert data_rows(table, ["v"]) == [{"v": "v5"}]
    assert cleaned(opened(table, VERSIONS | {"hoodie.clean.fileversions.retained": "1"})).files == 2
    assert data_rows(table, ["v"]) == [{"v": "v5"}]


@pytest.mark.parametrize("kind", KINDS)
def test_clean_deletes_change_logs_with_their_slices(kind: str) -> None:
    shape = Shape(type=kind, rows_per_file=1_000, merge="commit", options={"hoodie.table.cdc.enabled": "true"})
    table = opened(make_table(shape), TWO)
    for number in range(6):
        table.upsert(batch([row("k0", v=f"v{number}")]))
        if kind == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
    storage, instants = table.refresh().env.storage, writes(table)
    logs = {file.path for file in storage.list("a") if file.name.endswith(".cdc")}
    begin = table.timeline.writes().by_completion()[-3].completion
    expected = table.incremental(begin, format="cdc").to_arrow()
    gone = set(cleaned(table).metadata.deleted)
    assert bool(logs & gone) is (kind == "COPY_ON_WRITE"), "merge-on-read tables have log files instead"
    assert gone.isdisjoint({path for path in logs if instants[-1] in path})
    assert table.incremental(begin, format="cdc").to_arrow() == expected
    with pytest.raises(UserError, match="clean"):
        table.incremental("earliest", format="cdc").to_arrow()


def test_reads_of_cleaned_versions_are_refused_with_a_hint() -> None:
    table = updated(5)
    ends = [instant.completion for instant in table.timeline.writes().by_completion()]
    earliest = cleaned(table).metadata.earliest
    with pytest.raises(UserError, match=f"Read it as of {earliest} or later; hoodie.clean.commits.retained"):
        data_rows(table, as_of=writes(table)[1])
    with pytest.raises(UserError, match=f"as of {ends[1]} any more"):
        table.incremental("earliest", ends[1]).to_arrow()
    assert table.incremental(ends[0], None).count() == 1, "the newest version is readable"
    assert data_rows(table, ["v"], where="p = 'b'", as_of=writes(table)[1]) == [{"v": "v0"}], "no file of b was deleted"
    with pytest.raises(UserError, match="before the first commit"):
        data_rows(table, as_of="2020-01-01")


def test_clean_run_deletes_the_planned_files_and_plan_writes_nothing() -> None:
    table = updated(5)
    before = {file.path for file in table.refresh().env.storage.list("")}
    shown = table.services.clean.plan()
    assert isinstance(shown, CleanPlan) and shown == table.services.clean.plan()
    assert {file.path for file in table.refresh().env.storage.list("")} == before
    planned = table.services.clean.schedule()
    assert isinstance(planned, Instant)
    loaded = table.refresh()
    data = loaded.store.read(planned, State.REQUESTED)
    assert data and decode_clean_plan(data, base_path=loaded.env.storage.root).files == shown.files
    again = table.services.clean.schedule()
    assert isinstance(again, NothingToDo) and planned.requested in again.reason
    assert table.services.clean.plan() == decode_clean_plan(data, base_path=loaded.env.storage.root)
    outcome = cleaned(table, instant=planned.requested)
    assert outcome.instant.requested == planned.requested
    stored = loaded.store.read(outcome.instant, State.COMPLETED)
    assert stored and decode_clean_metadata(stored) == outcome.metadata
    assert set(outcome.metadata.deleted) == set(shown.paths)
    with pytest.raises(UserError, match=f"the clean {planned.requested} is completed; pending plans: none"):
        table.services.clean.run(instant=planned.requested)


def test_clean_due_returns_the_reason_and_the_number_of_commits() -> None:
    table = updated(1)
    answer = table.services.clean.due()
    assert (answer.due, answer.commits) == (False, 2) and "all of them are retained" in answer.reason
    table = updated(4, options=TWO | {"hoodie.clean.trigger.max.commits": "5"})
    assert table.services.clean.due().due
    cleaned(table)
    table.upsert(batch([row("k0", ts=9)]))
    answer = table.services.clean.due()
    assert (answer.due, answer.commits) == (False, 1) and "due after 5" in answer.reason
    assert isinstance(table.services.clean.run(), NothingToDo) and cleaned(table, force=True).files == 1


@pytest.mark.parametrize("metadata", [True, False])
def test_clean_lists_changed_partitions_only_if_it_has_no_metadata_table(metadata: bool) -> None:
    table = updated(4, metadata=metadata)
    cleaned(table)
    for number in range(2):
        table.upsert(batch([row("k0", ts=20 + number)]))
    for incremental, listed in (("true", ["list_dir a"]), ("false", ["list a", "list b"])):
        options = TWO | {"hoodie.clean.incremental.enabled": incremental}
        storage = FaultyStorage(table.refresh().env.storage)
        watched = Table.open(table.location, options=options, env=replace(table.refresh().env, storage=storage))
        planned = watched.services.clean.plan()
        assert isinstance(planned, CleanPlan) and set(planned.files) == {"a"}
        assert sorted(step for step in storage.trace if step.split()[-1] in ("a", "b")) == ([] if metadata else listed)


def test_clean_skips_a_plan_with_an_active_executor() -> None:
    table = updated(4)
    planned = table.services.clean.schedule()
    assert isinstance(planned, Instant)
    heartbeat = Heartbeat(table.refresh().env, table.services.policies.transaction)
    heartbeat.start(planned.requested)
    with pytest.raises(RetryableError, match="another executor, whose heartbeat is valid"):
        table.services.clean.run(instant=planned.requested)
    with pytest.raises(RetryableError, match=f"the clean {planned.requested} is active"):
        table.restore(writes(table)[-2])
    heartbeat.discard()
    assert cleaned(table).instant.requested == planned.requested


def test_savepoint_is_refused_if_a_concurrent_clean_deleted_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = updated(5)
    kept_files = savepoint_operation._kept_files
    raced: list[Cleaned] = []

    def slow(*args: Any) -> Any:
        kept = kept_files(*args)
        if not raced:
            raced.append(cleaned(table))
        return kept

    monkeypatch.setattr(savepoint_operation, "_kept_files", slow)
    with pytest.raises(UserError, match=r"needs . files that the clean"):
        table.savepoint(writes(table)[1])
    assert table.savepoints() == ()


def test_clean_removes_an_empty_plan_from_the_timeline() -> None:
    table = updated(4)
    loaded = table.refresh()
    loaded.store.start(loaded.store.request(loaded.timeline, Action.CLEAN, b""), b"")
    assert cleaned(table).files > 0
    assert not table.timeline.where(pending=True)


def test_clean_policy_that_retains_nothing_is_refused() -> None:
    for key in ("commits", "hours", "fileversions"):
        with pytest.raises(UserError, match=f"hoodie.clean.{key}.retained=0: must be at least 1"):
            updated(1, options={f"hoodie.cleaner.{key}.retained": "0"})


def test_orphans_are_old_files_that_no_commit_names(tmp_path: Path) -> None:
    table = updated(2, env=Env(storage=open_storage(str(tmp_path / "t"))))
    storage = table.refresh().env.storage
    (base,) = [base for base in base_files(storage) if base.partition == "b"]
    first, last = writes(table)[0], writes(table)[-1]
    repeated = base.path.replace(base.write_token, "9-9-9")
    undone = base.path.replace(base.instant, str(int(last) + 1))
    archived = base.path.replace(base.instant, str(int(first) - 1))
    for path in (repeated, undone, archived, "b/.x.parquet.1.tmp", "b/notes.txt"):
        aged(tmp_path / "t" / path)
    storage.put(base.path.replace(base.write_token, "8-8-8"), b"too young")
    found = {orphan.path: orphan.reason for orphan in table.services.orphans()}
    assert found == {
        repeated: f"the write {base.instant} does not name it",
        undone: f"there is no write {int(last) + 1}",
        "b/.x.parquet.1.tmp": "its writer ended before it named the file",
    }
    loaded = table.refresh()
    pending = loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    later = base.path.replace(base.instant, str(int(pending.requested) + 1))
    aged(tmp_path / "t" / later)
    assert {orphan.path for orphan in table.services.orphans()} == set(found), "a pending write may have made it"
    rows, there = data_rows(table, ["id", "v"]), {file.path for file in storage.list("")}
    assert len(table.services.orphans(remove=True)) == 3 and table.services.orphans() == ()
    assert {file.path for file in storage.list("")} == there - set(found)
    assert data_rows(table, ["id", "v"]) == rows


def aged(path: Path) -> None:
    """Write a file that is older than any grace time."""
    path.write_bytes(b"x")
    os.utime(path, (10**9, 10**9))


def test_write_after_clean_of_all_files_reads_no_deleted_file() -> None:
    table = make_table(Shape(keys="complex_single", rows_per_file=4, fills_small_files=False))
    table.upsert(batch([row("k0")]))
    table.delete_partitions(sorted({stat.partition for _, metadata in table.commits() for stat in metadata.stats}))
    options = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
    table.with_options(options).services.clean.run(force=True)
    table.upsert(batch([row("k1")]))
    assert table.scan().to_arrow().num_rows == 1
