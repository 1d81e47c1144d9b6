"""The pen of the timeline: fresh times, files made once, lost replies settled (TL-3, TL-7.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.timeline.commit_metadata import encode_commit
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
COMMIT = encode_commit(CommitMetadata(operation="UPSERT"), table_version=9, replace=False)


def store(env: Env, **properties: str) -> TimelineStore:
    """A store over an empty timeline."""
    return TimelineStore(env, parse_table_config({**RAW, **properties}, "here"))


def started(pen: TimelineStore) -> Instant:
    """An inflight commit."""
    return pen.start(pen.request(pen.load(), Action.COMMIT, b""), b"profile")


def test_a_commit_leaves_three_files_named_as_hudi_names_them() -> None:
    env = make_env()
    pen = store(env)
    instant = started(pen)
    done = pen.complete(instant, pen.load(), COMMIT, Alone())
    t, c = instant.requested, done.completed
    assert [file.path for file in env.storage.list("")] == [
        f".hoodie/timeline/{t}.commit.requested",
        f".hoodie/timeline/{t}.inflight",
        f".hoodie/timeline/{t}_{c}.commit",
    ]
    assert tuple(pen.load()) == (done,)
    assert c is not None and c > t and len(t) == len(c) == 17


def test_times_grow_though_the_clock_stands_still_or_goes_back() -> None:
    env = make_env()
    pen = store(env)
    first = pen.request(pen.load(), Action.COMMIT, b"")
    env.clock.now -= 86_400_000
    second = pen.request(pen.load(), Action.COMMIT, b"")
    assert second.requested > first.requested
    midnight = Timeline((Instant(requested="20261231235959999", action=Action.COMMIT, state=State.REQUESTED),))
    assert pen.new_instant_time(midnight) == "20270101000000000"


def test_the_times_are_utc_where_the_table_says_so() -> None:
    env = make_env()
    env.clock.now = 1_767_225_600_000 - 3
    assert store(env).new_instant_time(Timeline(())) == "20260101000000000"


def test_a_time_that_somebody_took_without_the_lock_is_left_to_them() -> None:
    env = make_env()
    pen = store(env)
    announced: list[str] = []

    def take(requested: str) -> None:
        if not announced:
            env.storage.create(f".hoodie/timeline/{requested}.commit.requested", b"theirs")
        announced.append(requested)

    mine = pen.request(pen.load(), Action.COMMIT, b"mine", announce=take)
    assert len(announced) == 2 and mine.requested == announced[1] > announced[0]
    assert env.storage.get(f".hoodie/timeline/{announced[0]}.commit.requested") == b"theirs"


def test_an_instant_that_was_rolled_back_cannot_complete() -> None:
    pen = store(make_env())
    instant = started(pen)
    pen.remove_pending(instant)
    with pytest.raises(RetryableError, match="rolled back by another writer"):
        pen.complete(instant, pen.load(), COMMIT, Alone())


def test_an_instant_completes_once() -> None:
    pen = store(make_env())
    instant = started(pen)
    pen.complete(instant, pen.load(), COMMIT, Alone())
    with pytest.raises(RetryableError, match="completed by another executor"):
        pen.complete(instant, pen.load(), COMMIT, Alone())


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_lost_reply_is_read_back_at_every_step_of_a_commit(step: int) -> None:
    env = make_env()
    pen = store(env)
    instant = None
    for number, move in enumerate(("request", "start", "complete"), start=1):
        # Listing and creation are one step each; only the creation loses its reply.
        faulty = FaultyStorage(env.storage, fail_at=1 if number == step else None, mode=FaultMode.LOSE_REPLY)
        shaky = store(replace(env, storage=faulty))
        timeline = pen.load()
        if move == "request":
            instant = shaky.request(timeline, Action.COMMIT, b"")
        elif move == "start":
            instant = shaky.start(instant, b"")
        else:
            instant = shaky.complete(instant, timeline, COMMIT, Alone())
    assert instant is not None and tuple(pen.load()) == (instant,)


def test_a_commit_file_of_somebody_else_under_our_name_is_not_explained_away() -> None:
    env = make_env()
    pen = store(env)
    instant = started(pen)
    timeline = pen.load()
    guess = store(replace(env, storage=env.storage))
    completed = guess.new_instant_time(timeline)
    env.clock.now -= 3
    env.storage.create(f".hoodie/timeline/{instant.requested}_{completed}.commit", b"other")
    with pytest.raises(CommitStateUnknownError, match="inspect the timeline"):
        pen.complete(instant, timeline, COMMIT, Alone())


def test_metadata_of_a_commit_is_read_once() -> None:
    env = make_env()
    pen = store(env)
    done = [pen.complete(started(pen), pen.load(), COMMIT, Alone()) for _ in range(3)]
    counting = CountingStorage(env.storage)
    reader = store(replace(env, storage=counting))
    for _ in range(2):
        assert [instant for instant, _ in reader.commits(done)] == done
    assert counting.counts()["GET"] == 3


def test_version_6_keeps_its_instants_beside_the_properties() -> None:
    env = make_env()
    env.storage.create(".hoodie/20200101000000000.commit", b"{}")
    env.storage.create(".hoodie/20200102000000000.inflight", b"")
    six = store(env, **{"hoodie.table.version": "6", "hoodie.timeline.layout.version": "1"})
    assert [(i.requested, i.state) for i in six.load()] == [
        ("20200101000000000", State.COMPLETED),
        ("20200102000000000", State.INFLIGHT),
    ]


def test_files_that_are_no_instants_are_passed_over() -> None:
    env = make_env()
    env.storage.create(".hoodie/timeline/.20260101000000000.commit.tmp", b"")
    env.storage.create(".hoodie/timeline/history/1", b"")
    assert len(store(env).load()) == 0
