"""Random histories of writes, resizes and crashes: each key is in one bucket, and a resize changes no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.index.hash.consistent_hashing import key_hashes
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement.rings import load_rings
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING, INDEX_TYPE
from lakehouse.model.instant import Action
from lakehouse.spec.options.clustering import BUCKETS
from lakehouse.spec.options.index import MERGE_THRESHOLD, MIN_NUM_BUCKETS, SPLIT_THRESHOLD
from lakehouse.spec.table.bucket_rules import NUM_BUCKETS
from tests.support.killed import CALLS, Host, copy_of, open_as, points
from tests.support.tables import Shape, batch, examples, make_table, row

GROW = {SPLIT_THRESHOLD: "0.05", MERGE_THRESHOLD: "0", BUCKETS: "auto"}
SHRINK = {SPLIT_THRESHOLD: "1e9", MERGE_THRESHOLD: "1e8", MIN_NUM_BUCKETS: "1", BUCKETS: "auto"}
SORT = {"hoodie.clustering.plan.strategy.sort.columns": "v", MERGE_THRESHOLD: "0"}
PLANS = {"grow": GROW, "shrink": SHRINK, "sort": SORT}
ENGINES = {"ring": {BUCKET_ENGINE: CONSISTENT_HASHING}, "numbers": dict[str, str]()}
SHARED = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


CRASHED, SURVIVOR = 101, 102


def new_table(engine: str) -> Table:
    """Return an empty merge-on-read table with two buckets per partition."""
    return make_table(Shape(type="MERGE_ON_READ", index="BUCKET", merge="commit", options=ENGINES[engine]))


def options_of(engine: str, name: str) -> dict[str, str]:
    """Return the options of a plan; only numbered buckets have the option for their number."""
    return {key: value for key, value in PLANS[name].items() if engine == "numbers" or key != BUCKETS}


def assert_rows(table: Table, engine: str, expected: dict[str, str]) -> None:
    """Assert that the rows are the expected ones, each in the one file group of its bucket."""
    columns = ["id", "v", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]
    found = table.scan(columns).to_arrow()
    assert Counter((r["id"], r["v"]) for r in found.to_pylist()) == Counter(expected.items())
    groups = [name.lstrip(".").partition("_")[0] for name in found.column("_hoodie_file_name").to_pylist()]
    keys = found.column("_hoodie_record_key")
    slices = [s for s in load_slices(table.refresh()) if s.partition == "a"]
    if engine == "ring":
        ring = load_rings(table.refresh(), ["a"]).get("a")
        hashes = key_hashes(keys, key_fields=("id",), hash_fields=()).tolist()
        assert groups == [ring.node_of(value).file_id for value in hashes if ring is not None]
        assert all(ring is not None and ring.node_of_group(s.file_id) is not None for s in slices)
        return
    buckets = [bucket_of(s.file_id) for s in slices]
    assert len(set(buckets)) == len(buckets)
    for count in (1, 2, 4, 8, 16, 32, 64):
        placed = bucket_ids(keys, key_fields=("id",), hash_fields=(), buckets=count).tolist()
        if [bucket_of(group) for group in groups] == placed:
            return
    raise AssertionError(f"the rows are in the buckets {sorted(set(groups))} of no number of buckets")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.integers(0, 30), st.integers(1, 40)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.integers(1, 10)),
        st.tuples(st.sampled_from(["grow", "shrink", "sort", "run", "compact"]), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@pytest.mark.parametrize("engine", ENGINES)
@examples(25)
@given(history=steps)
def test_every_key_is_in_one_bucket_after_any_history_of_writes_and_resizes(
    engine: str, history: list[tuple[str, int, int]]
) -> None:
    table, expected = new_table(engine), dict[str, str]()
    for number, (step, first, count) in enumerate(history):
        names = [f"k{key}" for key in range(first, first + count)]
        if step == "upsert":
            table.upsert(batch(row(name, v=f"v{number}", ts=number) for name in names))
            expected |= dict.fromkeys(names, f"v{number}")
        elif step == "delete" and expected:
            table.delete(names)
            expected = {key: value for key, value in expected.items() if key not in names}
        elif step in PLANS:
            table.with_options(options_of(engine, step)).services.clustering.schedule(force=True)
        elif step == "run":
            for plan in table.refresh().timeline.where(action=Action.CLUSTERING, pending=True):
                table.services.clustering.run(instant=plan.requested)
        elif step == "compact" and expected:
            table.services.compaction.run(force=True)
        assert_rows(table, engine, expected)


@cache
def planned(engine: str) -> Storage:
    """Return a table with a pending resize, and with rows that were copied for it; tests work on copies."""
    storage = MemoryStorage()
    table = Table.create(
        storage.root,
        name="resized",
        record_key=["id"],
        partition_by=["p"],
        table_type="MERGE_ON_READ",
        options={**CALLS, **SHARED, INDEX_TYPE: "BUCKET", NUM_BUCKETS: "2", **ENGINES[engine]},
        env=Env(storage=storage, processes=Host(1, frozenset())),
    )
    table.upsert(batch(row(f"k{n}", v="old") for n in range(30)))
    table.with_options(options_of(engine, "grow")).services.clustering.schedule(force=True)
    table.upsert(batch(row(f"k{n}", v="new", ts=2) for n in range(20, 50)))
    return storage


def run(table: Table) -> object:
    """Execute the pending plan, or a new one."""
    return table.services.clustering.run(force=True)


def upsert(table: Table) -> object:
    """Change stored rows and add new ones."""
    return table.upsert(batch(row(f"k{n}", v="last", ts=3) for n in range(40, 60)))


BEFORE = {f"k{n}": "old" if n < 20 else "new" for n in range(50)}
AFTER = BEFORE | {f"k{n}": "last" for n in range(40, 60)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("act", [run, upsert], ids=["executor", "writer"])
def test_crash_of_an_executor_or_a_writer_at_any_step_loses_no_row(engine: str, act: Callable[[Table], object]) -> None:
    traced = FaultyStorage(copy_of(planned(engine)))
    act(open_as(traced, CRASHED))
    expected = BEFORE if act is run else AFTER
    for step, mode in points(tuple(traced.trace)):
        storage = copy_of(planned(engine))
        with pytest.raises(SimulatedCrash):
            act(open_as(FaultyStorage(storage, step, mode), CRASHED))
        table = open_as(storage, SURVIVOR, (CRASHED,))
        found = {r["id"]: r["v"] for r in table.scan(["id", "v"]).to_arrow().to_pylist()}
        assert found in (BEFORE, expected)
        upsert(table)
        run(table)
        assert_rows(table, engine, AFTER)
        table.rollback_failed()
        upsert(table)
        assert_rows(table, engine, AFTER)
        assert not table.timeline.where(action=Action.CLUSTERING, pending=True)
