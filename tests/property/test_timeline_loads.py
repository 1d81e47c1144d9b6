"""A timeline that is loaded again equals one that is loaded for the first time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.model.instant import Action, Instant, State
from tests.support.tables import examples

CONFIG = parse_table_config(declared_properties(TableDeclaration(name="t", record_key=("id",))), "here")
TIMES = [f"2026010100000000{digit}" for digit in range(4)]
ACTIONS = [Action.COMMIT, Action.COMPACTION, Action.CLEAN, Action.DELTACOMMIT]


@st.composite
def instants(draw: st.DrawFn) -> Instant:
    requested, action, state = (
        draw(st.sampled_from(TIMES)),
        draw(st.sampled_from(ACTIONS)),
        draw(st.sampled_from(State)),
    )
    if state is not State.COMPLETED:
        return Instant(requested=requested, action=action, state=state)
    # Several files of one completed instant exist after a lost lock.
    completed = f"2026010200000000{draw(st.integers(0, 2))}"
    return Instant(requested=requested, action=action.completed_as, state=state, completed=completed)


@examples(200)
@given(changes=st.lists(st.tuples(st.booleans(), st.lists(instants(), max_size=4)), max_size=8))
def test_timeline_after_changes_equals_a_first_load(changes: list[tuple[bool, list[Instant]]]) -> None:
    storage = MemoryStorage()
    kept = TimelineStore(Env(storage=storage), CONFIG)
    for is_deletion, changed in changes:
        paths = [f".hoodie/timeline/{CONFIG.layout.instant_name(instant)}" for instant in changed]
        if is_deletion:
            storage.delete_many(paths)
        else:
            for path in paths:
                storage.put(path, b"")
        first = TimelineStore(Env(storage=storage), CONFIG)
        assert kept.load() == first.load()
        for instant in changed:
            assert sorted(kept.pending_files(instant), key=str) == sorted(first.pending_files(instant), key=str)


def test_threads_that_load_one_store_lose_no_instant() -> None:
    storage = MemoryStorage()
    kept = TimelineStore(Env(storage=storage), CONFIG)
    times = [f"2026010100000{number:04d}" for number in range(300)]

    def write() -> None:
        for requested in times:
            for state, completed in ((State.REQUESTED, None), (State.COMPLETED, f"{requested[:-4]}9999")):
                instant = Instant(requested=requested, action=Action.COMMIT, state=state, completed=completed)
                storage.put(f".hoodie/timeline/{CONFIG.layout.instant_name(instant)}", b"")

    usual = sys.getswitchinterval()
    # Threads then change between single steps. A store that replaced its listing and its timeline in two steps failed
    # one of five runs.
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(5) as pool:
            writing = pool.submit(write)
            loads = [pool.submit(lambda: [kept.load() for _ in range(400)]) for _ in range(4)]
            for one in (writing, *loads):
                one.result()
    finally:
        sys.setswitchinterval(usual)
    assert [instant.requested for instant in kept.load() if instant.is_completed] == times
