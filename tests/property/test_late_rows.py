"""With `lakehouse.delete_retention`, rows and deletes may arrive in any order: the rows equal those of a plain dict.

Each key has a few events with distinct ordering values. Each arrival order of the events, divided into batches in each
possible way, gets its own key. One table then covers all orders with as many writes as there are events:

    key 0   insert@1 | update@4 | delete@3       key 1   insert@1, update@4 | delete@3       key 2   delete@3 | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.complete import CommitCheck, PreparedCommit, TimelineCheck
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.placement.by_hash import new_bucket_conflict
from lakehouse.core.operations.write import write
from lakehouse.core.operations.write.tombstones import LateRowsCheck
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.spec.options.index import MERGE_THRESHOLD, SPLIT_THRESHOLD
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.killed import Host
from tests.support.tables import DELETED, Shape, batch, data_rows, examples, make_env, make_table, row

Row = dict[str, Any]
RETENTION = {"lakehouse.delete_retention": "7d"}
SHAPES = {
    f"{'cow' if type == 'COPY_ON_WRITE' else 'mor'}-{index.lower()}-{version}": Shape(
        type=type, index=index, version=version, rows_per_file=200, options=RETENTION
    )
    for type, index, version in (
        ("COPY_ON_WRITE", "SIMPLE", 9),
        ("COPY_ON_WRITE", "BUCKET", 9),
        ("COPY_ON_WRITE", "GLOBAL_SIMPLE", 8),
        ("MERGE_ON_READ", "SIMPLE", 9),
        ("MERGE_ON_READ", "BUCKET", 8),
        ("MERGE_ON_READ", "GLOBAL_SIMPLE", 9),
    )
}
#: Buckets that hold few rows, so that they split during the test.
SHAPES["mor-ring-9"] = Shape(
    type="MERGE_ON_READ",
    index="BUCKET",
    rows_per_file=200,
    options={**RETENTION, BUCKET_ENGINE: CONSISTENT_HASHING, "hoodie.bucket.index.max.num.buckets": "16"},
)
#: Options with which all buckets split.
SPLITTING = {SPLIT_THRESHOLD: "0.2", MERGE_THRESHOLD: "0", "hoodie.parquet.max.file.size": "1000"}
#: Two event lists of a key: (ordering value, whether it is a delete). The newest event is a row or a delete.
EVENTS = ([(1, False), (4, False), (3, True)], [(1, False), (2, True), (3, False), (4, True)])


def event(key: str, ts: int, is_delete: bool, partition: str = "a") -> Row:
    """Return the row of an event. Its value `v` names the event."""
    return row(key, p=partition, ts=ts, v=f"{key}@{ts}", **{DELETED: True if is_delete else None})


def expected(events: Sequence[Row], *, by_key: bool = False) -> list[tuple[str, str, int, str]]:
    """Return the rows after all events in any order: the newest event of each key, unless it is a delete."""
    newest: dict[Any, Row] = {}
    for found in sorted(events, key=lambda r: r["ts"]):
        newest[found["id"] if by_key else (found["p"], found["id"])] = found
    return sorted((r["id"], r["p"], r["ts"], r["v"]) for r in newest.values() if not r[DELETED])


def stored(table: Table) -> list[tuple[str, str, int, str]]:
    """Return the rows of the table."""
    return sorted((r["id"], r["p"], r["ts"], r["v"]) for r in data_rows(table, ["id", "p", "ts", "v"]))


def arrivals(events: Sequence[tuple[int, bool]]) -> list[list[list[tuple[int, bool]]]]:
    """Return every order of the events, divided into batches in every way."""
    found = []
    for order in itertools.permutations(events):
        for cuts in itertools.product((False, True), repeat=len(order) - 1):
            batches = [[order[0]]]
            for one, cut in zip(order[1:], cuts, strict=True):
                batches = [*batches, [one]] if cut else [*batches[:-1], [*batches[-1], one]]
            found.append(batches)
    return found


def compact(table: Table) -> None:
    """Compact a merge-on-read table."""
    if table.config.is_merge_on_read:
        table.services.compaction.run(force=True)


def compact_logs(table: Table) -> None:
    """Compact the log files of a merge-on-read table."""
    if table.config.is_merge_on_read:
        table.services.log_compaction.run(force=True)


def cluster(table: Table) -> None:
    """Cluster the table if its index allows it; with consistent hashing the buckets split."""
    if table.config.raw.get(BUCKET_ENGINE) == CONSISTENT_HASHING:
        table.with_options(SPLITTING).services.clustering.run(force=True)
    elif table.config.raw.get("hoodie.index.type") != "BUCKET":
        table.services.clustering.run(force=True)


def clean(table: Table) -> None:
    """Delete the files that only old versions need."""
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)


SERVICES: Mapping[str, Callable[[Table], None]] = {
    "nothing": lambda _: None,
    "compaction": compact,
    "log-compaction": compact_logs,
    "clustering": cluster,
    "clean": clean,
}


@pytest.mark.parametrize("service", ["nothing", "compaction", "clustering"])
@pytest.mark.parametrize("name", SHAPES)
def test_table_does_not_depend_on_the_arrival_order_of_rows_and_deletes(name: str, service: str) -> None:
    table, history = make_table(SHAPES[name]), [made for events in EVENTS for made in arrivals(events)]
    events: list[Row] = []
    for step in range(max(len(batches) for batches in history)):
        arriving = [
            event(f"k{number}", ts, is_delete)
            for number, batches in enumerate(history)
            for ts, is_delete in (batches[step] if step < len(batches) else ())
        ]
        events += arriving
        assert isinstance(table.upsert(batch(arriving)), Committed)
        SERVICES[service](table)
        if service == "compaction":
            clean(table)
        assert stored(table) == expected(events)


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[list[Row], str, str]]]:
    """Draw a table shape and batches of events in any order.

    Each batch comes with the verb of its deletes and the service that runs after it.
    """
    name = draw(st.sampled_from(sorted(SHAPES)))
    partitions = st.sampled_from(["a", "b"])
    keys = st.sampled_from(["k1", "k2", "k3"])
    events = draw(st.lists(st.tuples(keys, partitions, st.booleans()), min_size=4, max_size=14))
    order = draw(st.permutations(range(len(events))))
    rows = [event(key, ts, is_delete, p) for ts, (key, p, is_delete) in ((ts, events[ts]) for ts in order)]
    batches = []
    while rows:
        size = draw(st.integers(1, 4))
        verb, service = draw(st.sampled_from(["flag", "delete"])), draw(st.sampled_from(sorted(SERVICES)))
        batches.append((rows[:size], verb, service))
        rows = rows[size:]
    return name, batches


@given(histories())
@examples(30)
def test_table_holds_the_newest_event_of_each_key_after_any_history(
    history: tuple[str, list[tuple[list[Row], str, str]]],
) -> None:
    name, batches = history
    table, events = make_table(SHAPES[name]), []
    for rows, verb, service in batches:
        events += rows
        # Ordering values start at 0, which is no default value in a 64-bit column.
        deletes = [r for r in rows if r[DELETED]] if verb == "delete" and len(table.timeline.writes()) else []
        others = [r for r in rows if r not in deletes]
        if others:
            table.upsert(batch(others))
        if deletes:
            table.delete(batch(deletes).select(["id", "p", "ts"]))
        SERVICES[service](table)
        assert stored(table) == expected(events, by_key="global" in name)


class _Interrupted(FaultyStorage):
    """A store that calls `rival` once, before the step with a given number."""

    def __init__(self, inner: Storage, number: int, rival: Callable[[], None]) -> None:
        super().__init__(inner)
        self.remaining, self._rival = number, rival

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        """Count the steps down to the call of the rival."""
        self.remaining -= 1
        if self.remaining == 0:
            self._rival()
        return super().step(name, call)


OPTIMISTIC = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.wait_time_ms": "1",
}
BLOCKED = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}


def write_concurrently(name: str, number: int, *, late_is_first: bool) -> tuple[bool | None, Table]:
    """Write a late row and the delete of its key concurrently: one runs before the given step of the other.

    Returns:
        Whether the interrupting write succeeded there, or None if the other write has no such step; and the table.
    """
    late, delete = batch([event("k", 5, False), event("l", 5, False)]), batch([event("k", 9, True)])
    first, second = (late, delete) if late_is_first else (delete, late)
    storage, options = MemoryStorage(), OPTIMISTIC | (BLOCKED if "mor-bucket" in name else {})
    table = make_table(SHAPES[name], env=make_env(storage=storage)).with_options(options)
    table.upsert(batch([event("other", 1, False, "b")]))
    succeeded = []

    def rival() -> None:
        with suppress(RetryableError):
            table.upsert(second)
            succeeded.append(True)

    interrupted = _Interrupted(storage, number, rival)
    env = Env(storage=interrupted, clock=table.refresh().env.clock, ids=table.refresh().env.ids)
    Table.open(storage.root, options=options, env=env).upsert(first)
    if interrupted.remaining <= 0 and not succeeded:
        # The table lock was held, so the interrupting write is repeated afterwards.
        table.upsert(second)
    return (None if interrupted.remaining > 0 else bool(succeeded)), table


ROWS_AFTER_DELETE = [("l", "a", 5, "l@5"), ("other", "b", 1, "other@1")]
BOTH_WAYS = pytest.mark.parametrize("late_is_first", [True, False], ids=["row-interrupted", "delete-interrupted"])


@BOTH_WAYS
@pytest.mark.parametrize("name", ["cow-simple-9", "cow-bucket-9", "mor-simple-9", "mor-bucket-8", "mor-ring-9"])
def test_late_row_is_dropped_when_its_delete_is_written_concurrently(name: str, late_is_first: bool) -> None:
    times = 0
    for number in itertools.count(1, 4):
        met, table = write_concurrently(name, number, late_is_first=late_is_first)
        if met is None:
            break
        times += met
        assert stored(table) == ROWS_AFTER_DELETE
        compact(table)
        assert stored(table) == ROWS_AFTER_DELETE
    assert times >= 3


def _compares_deletes(check: CommitCheck) -> bool:
    """Return whether a check finds late rows, or buckets that another commit created where this write deletes."""
    if isinstance(check, TimelineCheck) and isinstance(check.find, partial):
        return check.find.func is new_bucket_conflict
    return isinstance(check, LateRowsCheck)


@pytest.mark.parametrize("late_is_first", [True, False], ids=["makes-late", "begun"])
def test_planted_commit_that_ignores_concurrent_deletes_is_detected(
    late_is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = write.complete_commit

    def hasty(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        checks = tuple(check for check in candidate.checks if not _compares_deletes(check))
        return complete(replace(candidate, checks=checks), policy)

    monkeypatch.setattr(write, "complete_commit", hasty)
    seen = [write_concurrently("cow-bucket-9", number, late_is_first=late_is_first) for number in range(1, 60, 4)]
    assert any(met and stored(table) != ROWS_AFTER_DELETE for met, table in seen)


@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
def test_delete_counts_only_if_it_was_committed_after_a_crash_at_any_step(mode: FaultMode) -> None:
    def made() -> tuple[MemoryStorage, Table]:
        storage = MemoryStorage()
        env = replace(make_env(storage=storage), processes=Host(1, frozenset({2})))
        table = make_table(SHAPES["mor-simple-9"], env=env)
        table.upsert(batch([event("k", 1, False), event("other", 1, False, "b")]))
        return storage, table

    outcomes = set()
    for step in itertools.count(1, 4):
        storage, table = made()
        faulty = FaultyStorage(storage, step, mode)
        dying = replace(table.refresh().env, storage=faulty, processes=Host(2))
        try:
            Table.open(storage.root, env=dying).upsert(batch([event("k", 9, True)]))
        except SimulatedCrash:
            pass
        else:
            break
        # Look before the table is written again, because the next write rolls an uncommitted delete back.
        is_committed = len(table.timeline.writes()) == 2
        outcome = table.upsert(batch([event("k", 5, False)]))
        assert outcome.late_rows_dropped == is_committed
        assert [r[0] for r in stored(table)] == (["other"] if is_committed else ["k", "other"])
        outcomes.add(is_committed)
    assert outcomes == {True, False}
