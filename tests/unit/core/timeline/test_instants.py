"""TimelineStore: unique instant times, files created once, lost replies settled (TL-3, TL-7.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakehouse.core.env import Env
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action, Instant, State, Timeline
from tests.support.tables import Alone, make_env

RAW = declared_properties(TableDeclaration(name="t", record_key=("id",)))
COMMIT = table_layout(9).encode_commit(CommitMetadata(operation="UPSERT"), replace=False)


def store(env: Env, **properties: str) -> TimelineStore:
    """Return a store over an empty timeline."""
    return TimelineStore(env, parse_table_config({**RAW, **properties}, "here"))


def started(timeline_store: TimelineStore) -> Instant:
    """Return an inflight commit."""
    return timeline_store.start(timeline_store.request(timeline_store.load(), Action.COMMIT, b""), b"profile")


def test_commit_creates_three_files_with_the_names_of_hudi() -> None:
    env = make_env()
    timeline_store = store(env)
    instant = started(timeline_store)
    done = timeline_store.complete(instant, timeline_store.load(), COMMIT, Alone())
    t, c = instant.requested, done.completed
    assert [file.path for file in env.storage.list("")] == [
        f".hoodie/timeline/{t}.commit.requested",
        f".hoodie/timeline/{t}.inflight",
        f".hoodie/timeline/{t}_{c}.commit",
    ]
    assert tuple(timeline_store.load()) == (done,)
    assert c is not None and c > t and len(t) == len(c) == 17


def test_instant_times_grow_if_the_clock_stands_still_or_goes_back() -> None:
    env = make_env()
    timeline_store = store(env)
    first = timeline_store.request(timeline_store.load(), Action.COMMIT, b"")
    env.clock.now -= 86_400_000
    second = timeline_store.request(timeline_store.load(), Action.COMMIT, b"")
    assert second.requested > first.requested
    midnight = Timeline((Instant(requested="20261231235959999", action=Action.COMMIT, state=State.REQUESTED),))
    assert timeline_store.new_instant_time(midnight) == "20270101000000000"


def test_instant_times_are_utc_if_the_table_says_so() -> None:
    env = make_env()
    env.clock.now = 1_767_225_600_000 - 3
    assert store(env).new_instant_time(Timeline(())) == "20260101000000000"


def test_instant_time_used_without_the_lock_is_skipped() -> None:
    env = make_env()
    timeline_store = store(env)
    announced: list[str] = []

    def take(requested: str) -> None:
        if not announced:
            env.storage.create(f".hoodie/timeline/{requested}.commit.requested", b"theirs")
        announced.append(requested)

    mine = timeline_store.request(timeline_store.load(), Action.COMMIT, b"mine", announce=take)
    assert len(announced) == 2 and mine.requested == announced[1] > announced[0]
    assert env.storage.get(f".hoodie/timeline/{announced[0]}.commit.requested") == b"theirs"


def test_instant_that_was_rolled_back_cannot_complete() -> None:
    timeline_store = store(make_env())
    instant = started(timeline_store)
    timeline_store.remove_pending(instant)
    with pytest.raises(RetryableError, match="rolled back by another writer"):
        timeline_store.complete(instant, timeline_store.load(), COMMIT, Alone())


def test_instant_completes_only_once() -> None:
    timeline_store = store(make_env())
    instant = started(timeline_store)
    timeline_store.complete(instant, timeline_store.load(), COMMIT, Alone())
    with pytest.raises(RetryableError, match="completed by another executor"):
        timeline_store.complete(instant, timeline_store.load(), COMMIT, Alone())


@pytest.mark.parametrize("step", [1, 2, 3])
def test_lost_reply_is_read_back_at_every_step_of_a_commit(step: int) -> None:
    env = make_env()
    timeline_store = store(env)
    instant = None
    for number, move in enumerate(("request", "start", "complete"), start=1):
        # Listing and creation are one step each. Only the reply of the creation is lost.
        faulty = FaultyStorage(env.storage, fail_at=1 if number == step else None, mode=FaultMode.LOSE_REPLY)
        shaky = store(replace(env, storage=faulty))
        timeline = timeline_store.load()
        if move == "request":
            instant = shaky.request(timeline, Action.COMMIT, b"")
        elif move == "start":
            instant = shaky.start(instant, b"")
        else:
            instant = shaky.complete(instant, timeline, COMMIT, Alone())
    assert instant is not None and tuple(timeline_store.load()) == (instant,)


def test_completed_file_of_another_process_raises_commit_state_unknown() -> None:
    env = make_env()
    timeline_store = store(env)
    instant = started(timeline_store)
    timeline = timeline_store.load()
    guess = store(replace(env, storage=env.storage))
    completed = guess.new_instant_time(timeline)
    env.clock.now -= 3
    env.storage.create(f".hoodie/timeline/{instant.requested}_{completed}.commit", b"other")
    with pytest.raises(CommitStateUnknownError, match="inspect the timeline"):
        timeline_store.complete(instant, timeline, COMMIT, Alone())


def test_metadata_of_a_commit_is_read_only_once() -> None:
    env = make_env()
    timeline_store = store(env)
    done = [timeline_store.complete(started(timeline_store), timeline_store.load(), COMMIT, Alone()) for _ in range(3)]
    counting = CountingStorage(env.storage)
    reader = store(replace(env, storage=counting))
    for _ in range(2):
        assert [instant for instant, _ in reader.commits(done)] == done
    assert counting.counts()["GET"] == 3


def test_version_6_stores_its_instants_beside_the_properties() -> None:
    env = make_env()
    env.storage.create(".hoodie/20200101000000000.commit", b"{}")
    env.storage.create(".hoodie/20200102000000000.inflight", b"")
    six = store(env, **{"hoodie.table.version": "6", "hoodie.timeline.layout.version": "1"})
    assert [(i.requested, i.state) for i in six.load()] == [
        ("20200101000000000", State.COMPLETED),
        ("20200102000000000", State.INFLIGHT),
    ]


def test_files_that_are_not_instants_are_skipped() -> None:
    env = make_env()
    env.storage.create(".hoodie/timeline/.20260101000000000.commit.tmp", b"")
    env.storage.create(".hoodie/timeline/history/1", b"")
    assert len(store(env).load()) == 0
