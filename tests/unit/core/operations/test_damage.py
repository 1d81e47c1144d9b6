"""Lost or damaged files of commits: readers, writers and services raise an error instead of using older rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_listing
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.operations.read import damage
from lakehouse.core.operations.services.plan_executor import ClaimedPlan
from lakehouse.core.operations.services.planned_files import planned_files_exist
from lakehouse.core.operations.write import staged
from lakehouse.core.planning.damage import find_damage
from lakehouse.core.state.data_files import LISTING, listing_of
from lakehouse.core.state.file_system_view import Replaced, visible_timeline
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.compaction import CompactionOperation
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.policies import Policies
from tests.support.tables import Shape, batch, data_rows, log_files, make_table, row

V6, V9 = table_layout(6), table_layout(9)

LOGGED = Shape(type="MERGE_ON_READ", keys="non_partition", rows_per_file=1_000)
#: Without a metadata table, a listing of storage is compared with the commits.
LISTED = {"hoodie.metadata.enable": "false"}
COPIED = Shape(keys="non_partition", rows_per_file=1_000, options=LISTED)
SKIP = {"lakehouse.damaged.files": "skip"}
OLD, NEW = [("k", "old")], [("k", "new")]


def newest_log(storage: Storage) -> str:
    return max(log_files(storage), key=lambda log: log.instant).path


def newest_base(storage: Storage) -> str:
    bases = [b for f in storage.list("") if (b := parse_base_file(f.name, f.path.rpartition("/")[0], 0))]
    return max(bases, key=lambda base: base.instant).path


def cut(storage: Storage, path: str) -> None:
    storage.put(path, storage.get(path)[:-1])


def empty(storage: Storage, path: str) -> None:
    storage.put(path, b"")


def break_size_field(storage: Storage, path: str) -> None:
    data = storage.get(path)
    storage.put(path, data[:6] + b"\0" * 8 + data[14:])


def delete(storage: Storage, path: str) -> None:
    storage.delete(path)


@dataclass(frozen=True)
class Case:
    """One kind of damage to the newest file of a table."""

    shape: Shape
    newest: Callable[[Storage], str]
    harm: Callable[[Storage, str], None]
    invariant: str


CASES = {
    "a log without its last byte": Case(LOGGED, newest_log, cut, "file.size"),
    "an empty log": Case(LOGGED, newest_log, empty, "file.size"),
    "a log with a broken size field": Case(LOGGED, newest_log, break_size_field, "log.readable"),
    "a deleted log": Case(LOGGED, newest_log, delete, "file.present"),
    "a deleted base file": Case(COPIED, newest_base, delete, "file.present"),
}


def damaged(case: Case) -> tuple[Table, Env, str]:
    """Return a table, loaded by a new process, and the path of its newest file, which is damaged."""
    table = make_table(case.shape)
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2)]))
    assert ids(table) == NEW
    env = table.refresh().env
    path = case.newest(env.storage)
    case.harm(env.storage, path)
    return Table.open(env.storage.root, env=env), env, path


def ids(table: Table) -> list[tuple[str, str]]:
    return [(found["id"], found["v"]) for found in data_rows(table, ["id", "v"])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("verb", ["read", "write", "compaction", "log_compaction", "clustering"])
def test_damaged_file_is_refused_by_readers_writers_and_services(name: str, verb: str) -> None:
    case = CASES[name]
    if verb in ("compaction", "log_compaction") and case.shape is COPIED:
        verb = "clustering"
    table, env, path = damaged(case)
    eager = Table.open(env.storage.root, env=env, options={"hoodie.log.compaction.blocks.threshold": "1"})
    verbs: dict[str, Callable[[], object]] = {
        "read": partial(ids, table),
        "write": lambda: table.upsert(batch([row("k", v="newer", ts=3)])),
        "compaction": lambda: table.services.compaction.run(force=True),
        "log_compaction": eager.services.log_compaction.run,
        "clustering": lambda: table.services.clustering.run(force=True),
    }
    before = len(table.commits())
    with pytest.raises(CorruptTableError, match=r"lakehouse\.damaged\.files=skip") as raised:
        verbs[verb]()
    assert path in raised.value.message
    assert len(Table.open(env.storage.root, env=env).commits()) == before


@pytest.mark.parametrize("name", CASES)
def test_validate_finds_damaged_file(name: str) -> None:
    table, _, path = damaged(CASES[name])
    assert (CASES[name].invariant, path) in {(f.invariant, f.path) for f in table.validate(deep=True).findings}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_skipped_by_option_and_ends_with_a_rewrite(name: str) -> None:
    case = CASES[name]
    _, env, _ = damaged(case)
    skipping = Table.open(env.storage.root, env=env, options=SKIP)
    assert ids(skipping) == OLD
    if case.shape is LOGGED:
        outcome = skipping.services.compaction.run(force=True)
        gone = case.harm in (delete, empty)
        if not isinstance(outcome, Committed):
            assert case.harm is delete
            return
        assert outcome.metadata.stats[0].corrupt_blocks == (0 if gone else 1)
    else:
        skipping.upsert(batch([row("other", v="x")]))
    assert ids(Table.open(env.storage.root, env=env))[:1] == OLD


def test_error_names_expected_and_found_size() -> None:
    table, _, path = damaged(CASES["a log without its last byte"])
    with pytest.raises(CorruptTableError) as raised:
        ids(table)
    facts = raised.value.facts
    assert (facts["path"], facts["found"]) == (path, facts["expected"] - 1)
    assert f"{facts['found']} bytes" in raised.value.message and f"{facts['expected']} bytes" in raised.value.message


def test_plan_made_before_the_damage_is_not_executed() -> None:
    table = make_table(LOGGED)
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2)]))
    table.services.compaction.schedule(force=True)
    env = table.refresh().env
    empty(env.storage, newest_log(env.storage))
    with pytest.raises(CorruptTableError, match="has 0 bytes"):
        Table.open(env.storage.root, env=env).services.compaction.run()


@pytest.mark.parametrize("newest", [newest_log, newest_base])
def test_plan_that_names_a_missing_file_is_refused_and_dropped_only_if_damage_is_skipped(
    newest: Callable[[Storage], str],
) -> None:
    table = make_table(LOGGED)
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2)]))
    table.services.compaction.schedule(force=True)
    env = table.refresh().env
    path = newest(env.storage)
    env.storage.delete(path)
    with pytest.raises(CorruptTableError, match=r"pending compaction .*lakehouse\.damaged\.files=skip") as raised:
        Table.open(env.storage.root, env=env).services.compaction.run()
    assert raised.value.facts["path"] == path
    skipping = Table.open(env.storage.root, env=env, options=SKIP)
    assert isinstance(skipping.services.compaction.run(force=True), Committed) == (newest is newest_base)
    fresh = Table.open(env.storage.root, env=env)
    assert not fresh.refresh().timeline.where(action=Action.COMPACTION, pending=True)
    assert ids(skipping) == (OLD if newest is newest_log else NEW)


def test_clustering_plan_that_names_a_missing_file_is_refused_and_dropped_only_if_damage_is_skipped() -> None:
    table = make_table(COPIED)
    table.bulk_insert(batch([row("k", v="old")]))
    table.bulk_insert(batch([row("l", v="new")]))
    table.services.clustering.schedule(force=True)
    env = table.refresh().env
    path = newest_base(env.storage)
    env.storage.delete(path)
    with pytest.raises(CorruptTableError, match=f"{path} is missing, and the pending clustering"):
        Table.open(env.storage.root, env=env).services.clustering.run()
    Table.open(env.storage.root, env=env, options=SKIP).services.clustering.run(force=True)
    fresh = Table.open(env.storage.root, env=env)
    assert not fresh.refresh().timeline.where(action=Action.CLUSTERING, pending=True)
    assert ids(Table.open(env.storage.root, env=env, options=SKIP)) == [("k", "old")]


def test_plan_dropped_by_another_executor_is_retried_if_its_files_were_cleaned() -> None:
    table = make_table(LOGGED)
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2)]))
    loaded = table.refresh()
    path = newest_log(loaded.env.storage)
    operation = CompactionOperation.of(load_listing(loaded).slices[0], {})
    gone = Instant(requested="20990101000000000", action=Action.COMPACTION, state=State.INFLIGHT)
    policies = Policies()
    heartbeat = Heartbeat(loaded.env, policies.transaction)
    claimed = ClaimedPlan(table=loaded, policies=policies, instant=gone, claim=1, heartbeat=heartbeat)
    with (
        pytest.raises(RetryableError),
        planned_files_exist(claimed, [operation]),
    ):
        loaded.env.storage.delete(path)
        loaded.env.storage.get(path)


def test_read_optimized_query_ignores_damaged_logs() -> None:
    table, _, _ = damaged(CASES["a deleted log"])
    assert [found["v"] for found in table.scan(["v"], read_optimized=True).to_arrow().to_pylist()] == ["old"]


def test_archived_commits_and_cleaned_files_are_not_reported() -> None:
    table = make_table(Shape(keys="non_partition", options={"hoodie.clean.commits.retained": "1", **LISTED}))
    for value in range(6):
        table.upsert(batch([row("k", v=str(value), ts=value + 1)]))
    table.services.clean.run()
    env = table.refresh().env
    fresh = Table.open(env.storage.root, env=env)
    listing = load_listing(fresh.refresh())
    assert damage.check_listing(fresh.refresh(), listing, skips=False, completed_after="") == ()
    assert ids(fresh) == [("k", "5")]


def test_lost_file_that_the_metadata_table_lists_is_refused_when_it_is_opened_or_skipped_by_option() -> None:
    table, env, path = damaged(Case(Shape(keys="non_partition"), newest_base, delete, "file.present"))
    with pytest.raises(CorruptTableError, match="does not exist although the table names it"):
        ids(table)
    with pytest.raises(CorruptTableError, match=path):
        table.upsert(batch([row("k", v="newer", ts=3)]))
    skipping = Table.open(env.storage.root, env=env, options=SKIP)
    assert ids(skipping) == OLD
    skipping.upsert(batch([row("k", v="newer", ts=3)]))
    assert ids(Table.open(env.storage.root, env=env)) == [("k", "newer")]


def test_listing_older_than_the_timeline_is_repeated_without_damage() -> None:
    table = make_table(Shape(keys="non_partition", options={"hoodie.clean.commits.retained": "1", **LISTED}))
    table.upsert(batch([row("k", v="1")]))
    env = table.refresh().env
    before = load_table(env)
    before.store.commits(before.timeline.writes())
    for value in (2, 3, 4):
        table.upsert(batch([row("k", v=str(value), ts=value)]))
    table.services.clean.run()
    listing = load_listing(before)
    assert listing.slices == ()
    with pytest.raises(RetryableError, match="was removed while the table was read"):
        damage.check_listing(before, listing, skips=False)


@pytest.mark.parametrize("many", [True, False])
def test_write_is_tried_again_if_the_table_changed_while_it_was_listed(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"} if many else {}
    table = make_table(Shape(options=mode))
    table.insert(batch([row("k", v="1")]))
    check, calls = staged.check_listing, list[int]()

    def changed_once(*given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 1:
            raise damage.ChangedWhileListedError("a file was removed while the table was read; run again")
        return check(*given, **named)

    monkeypatch.setattr(staged, "check_listing", changed_once)
    if many:
        outcome = table.upsert(batch([row("k", v="2", ts=2)]))
        assert isinstance(outcome, Committed) and outcome.conflicts == 1
        assert table.inspection.instant(outcome.instant.requested).numbers["conflicts"] == 1
    else:
        with pytest.raises(RetryableError, match="run again"):
            table.upsert(batch([row("k", v="2", ts=2)]))
    assert [found["v"] for found in data_rows(table)] == ["2" if many else "1"]


T1, T2, T3, T4 = (f"2026010100000{n}000" for n in range(1, 5))


def instant(requested: str, completed: str, action: Action = Action.DELTACOMMIT) -> Instant:
    return Instant(requested=requested, action=action, state=State.COMPLETED, completed=completed)


def log(at: str) -> LogFile:
    return LogFile(partition="", file_id="g", instant=at, version=1, write_token="0-0-0", size_bytes=10)


def base(at: str) -> BaseFile:
    return BaseFile(partition="", file_id="g", write_token="0-0-0", instant=at, size_bytes=10)


def commit(*files: BaseFile | LogFile, size: int = 10) -> CommitMetadata:
    stats = tuple(WriteStat(partition="", file_id="g", path=file.path, size_bytes=size) for file in files)
    return CommitMetadata(operation="UPSERT", stats=stats)


def test_log_is_missed_only_if_it_completed_after_the_base_file() -> None:
    compaction = instant(T2, T3, Action.COMMIT)
    early, late = instant(T1, "20260101000001500"), instant("20260101000001100", T4)
    visible = visible_timeline(Timeline((early, late, compaction)), ())
    commits = [(early, commit(log(T1))), (late, commit(log(late.requested))), (compaction, commit(base(T2)))]
    slices = [FileSlice(partition="", file_id="g", base_instant=T2, base=base(T2))]
    found = find_damage(commits, slices, listing_of([base(T2).path], [10]), visible, layout=V9, covered=frozenset)
    assert [(d.path, d.actual) for d in found] == [(log(late.requested).path, None)]


def test_log_of_version_6_may_be_longer_than_stated_and_not_shorter() -> None:
    first = instant(T1, T1)
    visible = visible_timeline(Timeline((first,)), ())
    slices = [FileSlice(partition="", file_id="g", base_instant=T1, logs=(log(T1),))]

    def sizes(size: int) -> list[int | None]:
        found = find_damage(
            [(first, commit(log(T1)))],
            slices,
            listing_of([log(T1).path], [size]),
            visible,
            layout=V6,
            covered=frozenset,
        )
        return [d.actual for d in found]

    assert (sizes(10), sizes(11), sizes(9)) == ([], [], [9])


def test_replaced_group_unlisted_partition_and_unstated_size_are_not_compared() -> None:
    first, second = instant(T1, T2), instant(T3, T4, Action.REPLACECOMMIT)
    timeline = Timeline((first, second))
    replaced = [Replaced(partition="", file_id="g", instant=second)]
    commits = [(first, commit(log(T1)))]
    assert (
        find_damage(
            commits,
            (),
            LISTING.empty_table(),
            visible_timeline(timeline, replaced),
            layout=V9,
            covered=frozenset,
        )
        == ()
    )
    visible = visible_timeline(timeline, ())
    assert find_damage(commits, (), LISTING.empty_table(), visible, layout=V9, covered=lambda _: frozenset()) == ()
    assert len(find_damage(commits, (), LISTING.empty_table(), visible, layout=V9, covered=frozenset)) == 1
    unstated = [(first, commit(log(T1), size=0))]
    slices = [FileSlice(partition="", file_id="g", base_instant=T1, logs=(log(T1),))]
    assert find_damage(unstated, slices, listing_of([log(T1).path], [7]), visible, layout=V9, covered=frozenset) == ()
