"""Runs of the ttl service: deleted partitions, kept partitions, and conflicts with writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.read.partition_statistics import STATISTICS
from lakehouse.core.operations.services.ttl import RULES_KEY
from lakehouse.core.operations.write import write
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table import services
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action
from lakehouse.model.ttl import TtlPlan
from tests.support.tables import Shape, base_files, batch, data_rows, make_env, make_table, row

#: The clock of these tables starts in the middle of June 2025.
DAY_MS = 86_400_000
MANY = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def june(*days: int) -> list[str]:
    return [f"p=2025-06-{day:02d}" for day in days]


def rows(days: Sequence[int], ts: int = 1) -> Any:
    return batch([row(f"k{day}", p=f"2025-06-{day:02d}", ts=ts) for day in days])


def table(days: Sequence[int] = range(1, 8), **shape: Any) -> Table:
    made = make_table(Shape(hive_style=True, **shape))
    made.bulk_insert(rows(days))
    return made


def other(made: Table, **options: str) -> Table:
    """Return the table opened by another process with these options."""
    return Table.open(made.location, env=made.refresh().env, options=options)


def committed(outcome: object) -> Committed:
    assert isinstance(outcome, Committed)
    return outcome


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_ttl_deletes_expired_partitions_in_one_replacecommit(kind: str) -> None:
    made = table(type=kind, options={"lakehouse.ttl.partition.age": "10d"})
    services = made.services
    assert (services.ttl.due().due, services.ttl.due().partitions) == (True, 4)
    planned = services.ttl.plan()
    assert isinstance(planned, TtlPlan) and list(planned.partitions) == june(1, 2, 3, 4)
    done = committed(services.ttl.run())
    assert (done.instant.action, done.metadata.operation) == (Action.REPLACECOMMIT, Operation.DELETE_PARTITION)
    assert sorted(done.metadata.replaced) == june(1, 2, 3, 4)
    assert json.loads(done.metadata.extra[RULES_KEY]) == {"table": 4}
    assert list(made.partitions()) == june(5, 6, 7)
    assert [r["id"] for r in data_rows(made)] == ["k5", "k6", "k7"]
    assert isinstance(made.services.ttl.run(), NothingToDo) and made.services.ttl.due().due is False


def test_ttl_plan_writes_nothing() -> None:
    made = table(options={"lakehouse.ttl.max.partitions": "2"})
    storage = made.refresh().env.storage
    before = [(file.path, file.size_bytes) for file in storage.list("")]
    planned = made.services.ttl.plan()
    assert made.services.ttl.plan() == planned and len(planned.expired) == 5
    assert [(file.path, file.size_bytes) for file in storage.list("")] == before


def test_clean_deletes_the_files_of_expired_partitions() -> None:
    made = table(options={"lakehouse.ttl.max.partitions": "3", "hoodie.clean.commits.retained": "1"})
    committed(made.services.ttl.run())
    assert len({file.partition for file in base_files(made.refresh().env.storage)}) == 7
    for ts in (2, 3):
        made.upsert(rows([7], ts))
    made.services.clean.run(force=True)
    assert sorted({file.partition for file in base_files(made.refresh().env.storage)}) == june(5, 6, 7)


def test_savepoint_keeps_the_files_of_expired_partitions() -> None:
    made = table(options={"lakehouse.ttl.max.partitions": "3", "hoodie.clean.commits.retained": "1"})
    made.savepoint()
    kept = made.timeline.writes().by_completion()[-1].requested
    committed(made.services.ttl.run())
    for ts in (2, 3):
        made.upsert(rows([7], ts))
    made.services.clean.run(force=True)
    assert len(data_rows(made, as_of=kept)) == 7 and len(data_rows(made)) == 3
    made.restore(kept)
    # The restored partitions have their old ages.
    assert len(made.partitions()) == 7
    assert list(made.services.ttl.plan().partitions) == june(1, 2, 3, 4)


def test_late_rows_recreate_an_expired_partition() -> None:
    made = table(options={"lakehouse.ttl.creation.age": "2d"})
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    assert len(committed(made.services.ttl.run()).metadata.replaced) == 7
    made.upsert(rows([3], 2))
    assert list(made.partitions()) == june(3)
    assert isinstance(made.services.ttl.run(), NothingToDo), (
        "the first commit of the partition is that of the late rows"
    )
    by_value = other(made, **{"lakehouse.ttl.partition.age": "2d"})
    assert list(by_value.services.ttl.plan().partitions) == june(3), "the age of the partition value is unchanged"


def test_ttl_strategies_of_hudi_use_the_last_or_the_first_commit() -> None:
    days = "hoodie.partition.ttl.strategy.days.retain"
    kind = "hoodie.partition.ttl.management.strategy.type"
    made = table([1, 2])
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    made.upsert(rows([2, 5], 2))
    assert list(other(made, **{days: "2"}).services.ttl.plan().partitions) == june(1)
    created = {days: "2", kind: "KEEP_BY_CREATION_TIME"}
    assert list(other(made, **created).services.ttl.plan().partitions) == june(1, 2)


def test_compaction_does_not_change_the_modification_age() -> None:
    made = table([1, 2], type="MERGE_ON_READ", options={"lakehouse.ttl.modification.age": "2d"})
    made.upsert(rows([1, 2], 2))
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    committed(made.services.compaction.run(force=True))
    assert len(made.services.ttl.plan().expired) == 2


@pytest.mark.parametrize("encoded", [True, False])
def test_partition_age_uses_the_format_of_the_timestamp_key_generator(encoded: bool) -> None:
    options = {"lakehouse.ttl.partition.age": "1d"}
    made = make_table(Shape(keys="timestamp", url_encode=encoded, options=options))
    now = made.refresh().env.clock.now_ms()
    made.insert(batch([row(f"k{n}", at=now - n * DAY_MS) for n in range(4)]))
    paths = [path.replace("%2F", "/") for path in made.services.ttl.plan().partitions]
    assert paths == ["2025/06/12", "2025/06/13"]


def test_ttl_rules_are_set_listed_and_removed() -> None:
    made = table(options={"lakehouse.ttl.max.partitions": "6"})
    assert list(made.services.ttl.plan().partitions) == june(1)
    made.services.set_ttl("p=2025-06-0*", rule_id="days", max_partitions=2)
    made.services.set_ttl("p=2025-06-03", partition_age="1000d")
    assert [rule.id for rule in other(made).services.ttl_rules()] == ["days", "p=2025-06-03"]
    assert list(made.services.ttl.plan().partitions) == june(1, 2, 4, 5)
    made.services.remove_ttl("p=2025-06-03")
    assert list(made.services.ttl.plan().partitions) == june(1, 2, 3, 4, 5)
    with pytest.raises(UserError, match="no year"):
        made.services.set_ttl("*", partition_age="3d", format="dd")
    with pytest.raises(UserError, match="Atlantis"):
        made.services.set_ttl("*", partition_age="3d", timezone="Atlantis")


def test_ttl_is_not_due_without_a_limit_and_refused_without_partitions() -> None:
    made = table()
    assert "no rule has a limit" in made.services.ttl.due().reason
    assert isinstance(made.services.ttl.run(), NothingToDo)
    assert STATISTICS not in [file.path for file in made.refresh().env.storage.list(".hoodie")]
    flat = make_table(Shape(keys="non_partition"))
    assert flat.services.ttl.due().due is False
    for call in (
        flat.services.ttl.run,
        flat.services.ttl.plan,
        other(flat, **{"lakehouse.ttl.max.partitions": "1"}).services.ttl.due,
    ):
        with pytest.raises(UserError, match="has no partitions"):
            call()


def test_ttl_keeps_pinned_partitions_and_partitions_beyond_its_limit() -> None:
    bound = "hoodie.partition.ttl.strategy.max.delete.partitions"
    limited = other(table(), **{"lakehouse.ttl.max.partitions": "1", bound: "2"})
    done = committed(limited.services.ttl.run(pinned=["p=2025-06-02/"]))
    assert sorted(done.metadata.replaced) == june(1, 3)
    assert limited.services.ttl.due().partitions == 2
    assert isinstance(limited.services.ttl.run(pinned=june(*range(1, 8))), NothingToDo)


def write_after_plan(monkeypatch: pytest.MonkeyPatch, *writes: Callable[[], object]) -> None:
    """Run one of `writes` between the plan and the write of each attempt of a run."""
    remaining = list(writes)

    def late(*arguments: Any) -> Any:
        if remaining:
            remaining.pop(0)()
        return write.write(*arguments)

    monkeypatch.setattr(services, "write", late)


def write_before_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run `action` once, after the instant of a run was created and before its commit."""
    done: list[bool] = []
    complete = write.complete_commit

    def late(candidate: Any, policy: Any) -> Any:
        if not done:
            done.append(True)
            action()
        return complete(candidate, policy)

    monkeypatch.setattr(write, "complete_commit", late)


@pytest.mark.parametrize("options", [{}, MANY], ids=["one writer", "many writers"])
def test_ttl_plans_again_after_a_conflicting_commit(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(options={"lakehouse.ttl.modification.age": "2d", **options})
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    write_after_plan(monkeypatch, lambda: other(made).upsert(rows([2], 2)))
    done = committed(made.services.ttl.run())
    assert sorted(done.metadata.replaced) == june(1, 3, 4, 5, 6, 7)
    assert [r["ts"] for r in data_rows(made)] == [2]


def test_concurrent_commit_wins_over_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(options={"lakehouse.ttl.modification.age": "2d", **MANY})
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    write_before_commit(monkeypatch, lambda: other(made, **MANY).insert(batch([row("new", p="2025-06-02", ts=5)])))
    done = committed(made.services.ttl.run())
    assert sorted(done.metadata.replaced) == june(1, 3, 4, 5, 6, 7)
    assert [r["id"] for r in data_rows(made)] == ["k2", "new"]
    assert not made.timeline.where(pending=True)


@pytest.mark.parametrize("first", ["the run", "the log"])
def test_ttl_loses_no_row_of_non_blocking_writers(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    made = make_table(Shape(hive_style=True, type="MERGE_ON_READ", index="BUCKET", options=MANY))
    made.bulk_insert(rows([1, 2, 3]))
    runs = other(made, **mode, **{"lakehouse.ttl.modification.age": "2d"})
    writes = other(made, **mode)
    clock: Any = made.refresh().env.clock
    clock.now += 3 * DAY_MS
    if first == "the run":
        # The run keeps the partition of the pending write, and the writer does not conflict with the run.
        write_before_commit(monkeypatch, lambda: committed(runs.services.ttl.run(pinned=june(1))))
        writes.upsert(rows([2], 2))
    else:
        write_before_commit(monkeypatch, lambda: writes.upsert(rows([2], 2)))
        committed(runs.services.ttl.run(pinned=june(1)))
    assert [(r["id"], r["ts"]) for r in data_rows(made)] == [("k1", 1), ("k2", 2)]


def test_ttl_deletes_nothing_after_repeated_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(options={"lakehouse.ttl.partition.age": "2d", "hoodie.write.num.retries.on.conflict.failures": "2"})
    writes = [lambda ts=ts: other(made).upsert(rows([2], ts)) for ts in range(2, 9)]
    write_after_plan(monkeypatch, *writes)
    with pytest.raises(RetryableError, match=r"wrote to 'p=2025-06-02' after this.*run ttl again"):
        made.services.ttl.run()
    assert len(made.partitions()) == 7


def test_ttl_keeps_a_partition_with_a_pending_write(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"lakehouse.ttl.max.partitions": "3", **MANY}
    made = table(options=options)
    seen: list[TtlPlan] = []
    write_before_commit(monkeypatch, lambda: seen.append(other(made, **options).services.ttl.plan()))
    made.upsert(rows([2], 2))
    assert list(seen[0].partitions) == june(1, 3, 4)
    assert [kept.partition for kept in seen[0].kept] == june(2) and "is pending" in seen[0].kept[0].reason


def test_ttl_keeps_a_partition_of_a_pending_compaction_until_it_completes() -> None:
    made = table([1, 2, 3], type="MERGE_ON_READ", options={"lakehouse.ttl.max.partitions": "1"})
    made.upsert(rows([1], 2))
    made.services.compaction.schedule(force=True)
    planned = made.services.ttl.plan()
    assert list(planned.partitions) == june(2) and "compaction" in planned.kept[0].reason
    committed(made.services.compaction.run())
    assert list(made.services.ttl.plan().partitions) == june(1, 2)


def test_ttl_of_a_single_writer_table_is_refused_during_an_active_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(options={"lakehouse.ttl.max.partitions": "3"})
    write_before_commit(monkeypatch, lambda: refused(other(made, **{"lakehouse.ttl.max.partitions": "3"})))
    made.upsert(rows([7], 2))
    assert len(made.partitions()) == 7


def refused(made: Table) -> None:
    with pytest.raises(RetryableError, match=r"the write \d+ is active"):
        made.services.ttl.run()


def test_ttl_request_count_does_not_depend_on_the_number_of_partitions() -> None:
    counting = CountingStorage(MemoryStorage())
    made = make_table(Shape(hive_style=True, rows_per_file=1000), env=make_env(storage=counting))
    listed = [row(f"k{n}", p=f"{2000 + n // 28}-02-{n % 28 + 1:02d}") for n in range(56)]
    made.bulk_insert(batch(listed))
    rules = other(made, **{"lakehouse.ttl.max.partitions": "50"})
    rules.services.ttl.due()
    services = rules.services
    counting.reset()
    assert services.ttl.due().partitions == 6
    # The requests read the base and the end of the policy log, and the statistics; the timeline is cached.
    assert {verb: number for verb, number in counting.counts().items() if number} == {"GET": 3}


def test_ttl_commit_names_only_the_expired_partitions() -> None:
    made = table([1, 2, 3], options={"lakehouse.ttl.max.partitions": "2"})
    metadata: CommitMetadata = committed(made.services.ttl.run()).metadata
    assert (metadata.stats, sorted(metadata.replaced)) == ((), june(1))
    assert WriteRequest(operation=Operation.DELETE_PARTITION).precondition is None


def test_description_of_a_table_says_when_and_why_its_partitions_expire() -> None:
    made = table(days=[1, 12], options={"lakehouse.ttl.partition.age": "10d"})
    old, young = made.describe().partitions
    now_ms = made.refresh().env.clock.now_ms()
    assert old.expired.startswith("partition_age is") and old.expired.endswith("above 10d")
    assert (young.expired, old.expires_ms is not None and old.expires_ms < now_ms) == ("", True)
    assert young.expires_ms is not None and old.expires_ms is not None
    assert young.expires_ms - old.expires_ms == 11 * DAY_MS
    assert [part.expires_ms for part in table().describe().partitions] == [None] * 7, "no rule has a limit"
