"""Tables of all kinds stay valid after writes, services and crashes; validation reports lost and damaged files."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache

import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import R, T, TaskFunction
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import stored_options
from lakehouse.core.operations.validate.validate import validate
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.model.instant import Instant
from lakehouse.model.restore import Savepoint
from lakehouse.spec.options.parser import parse_options
from tests.support.archived import eager
from tests.support.killed import (
    INDEXES,
    LOGGED,
    RECOVERY,
    base_table,
    copy_of,
    logged_table,
    open_as,
    points,
    rows_of,
    run_verb,
    share_of,
)
from tests.support.killed import batch as small_batch
from tests.support.tables import KEYS, Shape, batch, make_table, row

CRASHED, SURVIVOR = 101, 102
WRITTEN = {kind: ("upsert", "bulk_insert", "insert_overwrite", "delete") for kind in INDEXES} | {
    "LOGS_SIMPLE": ("upsert", "delete_partitions", "compaction", "log compaction"),
    "LOGS_BUCKET": ("upsert", "insert", "plan compaction", "compaction"),
    "LOGS_SIMPLE_6": ("upsert", "delete_partitions", "compaction"),
}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
SHAPES = [
    *(Shape(keys=keys, type=kind) for keys in KEYS for kind in TYPES),
    Shape(index="GLOBAL_SIMPLE"),
    Shape(index="GLOBAL_SIMPLE", type="MERGE_ON_READ"),
    Shape(index="BUCKET", keys="complex", buckets=3),
    Shape(index="BUCKET", type="MERGE_ON_READ", new_buckets="log", keys="custom"),
    Shape(version=8, type="MERGE_ON_READ", hive_style=True),
    *(
        Shape(version=6, type=kind, keys=keys)
        for kind in TYPES
        for keys in ("simple", "timestamp", "non_partition_pair")
    ),
    Shape(version=6, index="BUCKET", type="MERGE_ON_READ", new_buckets="log", keys="complex"),
    Shape(version=6, options={"hoodie.table.cdc.enabled": "true"}),
    Shape(rows_per_file=2, type="MERGE_ON_READ", log_bytes=1_000),
    Shape(options={"hoodie.table.cdc.enabled": "true"}),
    Shape(options={"hoodie.write.markers.type": "DIRECT"}, merge="commit"),
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: f"{shape.version}-{shape.type[0]}-{shape.keys}-{shape.index}"
)
def test_table_of_any_shape_is_valid_after_each_write(shape: Shape) -> None:
    table = make_table(shape)
    rows = [row(f"k{number}", p="abc"[number % 3], at=number * 86_400_000_000, v="é\U0001f600") for number in range(12)]
    table.upsert(batch(rows))
    table.upsert(batch([{**one, "ts": 2, "v": None} for one in rows[::2]]))
    table.delete(batch(rows[:2]))
    table.upsert(batch([row("k5", p="moved", ts=3), row("", ts=3) | {"id": "new,key:1"}]))
    table.insert_overwrite(batch([{**rows[3], "ts": 9}]))
    if shape.is_merge_on_read:
        table.services.compaction.run(force=True)
        table.upsert(batch([{**rows[4], "ts": 10, "amount": float("nan")}]))
    found = table.validate(deep=True)
    assert found.findings == () and found.rows >= table.scan().count() > 0


@pytest.mark.parametrize(
    "kind", ["SIMPLE", "LOGS_SIMPLE", "BUCKET", "LOGS_BUCKET", "SIMPLE_6", "LOGS_SIMPLE_6", "LOGS_BUCKET_6"]
)
def test_table_is_valid_after_each_service(kind: str) -> None:
    storage = copy_of(base(kind))
    options = {"hoodie.clustering.plan.strategy.sort.columns": "v", "hoodie.clean.commits.retained": "1"}
    table = open_as(storage, SURVIVOR, **options)
    is_merged, is_bucket = kind in LOGGED, "BUCKET" in kind

    def check(what: str) -> None:
        assert table.validate(deep=True).findings == (), what

    kept = table.savepoint()
    assert isinstance(kept, Savepoint)
    check("savepoint")
    if not is_bucket:
        table.services.clustering.schedule(force=True)
        check("plan of a clustering")
        table.services.clustering.run(force=True)
        check("clustering")
    table.upsert(small_batch({("a", "a1"): 30}))
    if is_merged:
        table.services.compaction.schedule(force=True)
        table.upsert(small_batch({("a", "a1"): 31, ("b", "b1"): 31}))
        check("plan of a compaction")
        table.services.compaction.run()
        check("compaction")
    table.services.clean.schedule(force=True)
    check("plan of a clean")
    table.services.clean.run()
    check("clean")
    table.upsert(small_batch({("a", "a1"): 32, ("e", "e1"): 32}))
    table.rollback(table.commits()[-1][0].requested)
    check("rollback")
    table.restore(kept.requested)
    check("restore")
    table.delete_savepoint(kept.requested)
    table.delete_partitions(["a"])
    check("delete of a partition")


@cache
def base(kind: str) -> Storage:
    """Return a table with several commits."""
    return (logged_table if kind in LOGGED else base_table)(MemoryStorage(), kind)


@pytest.mark.parametrize(("kind", "verb"), [(kind, verb) for kind, verbs in WRITTEN.items() for verb in verbs])
def test_table_has_no_corruption_after_a_crash_and_no_findings_after_the_next_write(kind: str, verb: str) -> None:
    whole = FaultyStorage(copy_of(base(kind)))
    run_verb(verb, open_as(whole, CRASHED))
    for step, mode in share_of(points(whole.trace), f"{kind} {verb}", of=10):
        storage = copy_of(base(kind))
        with pytest.raises(SimulatedCrash):
            run_verb(verb, open_as(FaultyStorage(storage, step, mode), CRASHED))
        where = f"{verb} crashed at {step} {mode}"
        crashed = open_as(storage, SURVIVOR, [CRASHED]).validate(deep=True)
        assert crashed.corrupt == (), where
        open_as(storage, SURVIVOR, [CRASHED]).upsert(small_batch(RECOVERY))
        after = open_as(storage, SURVIVOR, [CRASHED]).validate(deep=True)
        assert after.findings == (), where


@cache
def eventful(kind: str) -> Storage:
    """Return a table with an archived timeline, cleans, a savepoint and a pending plan."""
    storage = copy_of(base(kind))
    table = eager(open_as(storage, 1))
    for number in range(4):
        table.upsert(small_batch({("a", "a1"): 4 + number}))
        table.services.clean.run(force=True)
    table.services.archive.run(force=True)
    table.savepoint()
    table.upsert(small_batch({("a", "a7"): 9}))
    services = open_as(storage, 1, **{"hoodie.clustering.plan.strategy.sort.columns": "v"}).services
    planned = services.compaction.schedule(force=True) if kind in LOGGED else services.clustering.schedule(force=True)
    assert isinstance(planned, Instant) and table.archived()
    return storage


#: Files of version 6 that no other file names: an archive has no manifest.
UNNAMED_IN_6 = (".commits_.archive.1_1-0-1",)
#: Files whose loss or damage has no effect: they are not read, or the next writer creates them again.
NEEDLESS = (".inflight", "holder.json", "_version_", ".savepoint")


@pytest.mark.parametrize("how", ["lost", "garbled", "cut"])
@pytest.mark.parametrize("kind", ["SIMPLE", "LOGS_SIMPLE", "SIMPLE_6", "LOGS_SIMPLE_6"])
def test_validation_reports_any_lost_or_damaged_file(kind: str, how: str) -> None:
    whole = eventful(kind)
    slices = load_slices(open_as(whole, SURVIVOR).refresh())
    live = {path for piece in slices for path in slice_paths(piece)}
    assert open_as(whole, SURVIVOR).validate(deep=True).findings == ()
    for file in share_of(whole.list(""), (kind, how), of=6):
        storage = copy_of(whole)
        data = b"" if how == "lost" else b"\x07" * file.size_bytes if how == "garbled" else whole.get(file.path)[:-7]
        storage.put(file.path, data)
        if how == "lost":
            storage.delete(file.path)
        if file.path == PROPERTIES:
            continue
        if kind.endswith("_6") and how == "lost" and file.path not in live and not file.path.startswith(".hoodie"):
            # The archive of such a table may contain the clean that deleted an older file.
            continue
        if file.path.startswith(f"{METADATA}/"):
            # `table.metadata.validate` compares the metadata table. Reads are right without it.
            assert rows_of(storage) == rows_of(whole), (how, file)
            continue
        found = open_as(storage, SURVIVOR).validate(deep=True)
        name = file.name
        if file.path in live:
            assert file.path in {finding.path for finding in found.corrupt}, (how, file)
        elif name.endswith((".parquet", ".commit", ".deltacommit", ".clean", ".savepoint")) and how == "cut":
            assert found.corrupt, (how, file)
        elif kind.endswith("_6") and how == "lost" and (name.endswith(".requested") or name in UNNAMED_IN_6):
            # Archivers of version 6 delete the files of an action one by one, so a missing one is no finding.
            continue
        elif how == "lost" and not name.endswith(NEEDLESS):
            # Without its completed file an instant is pending again. It counts as a failed write or runs again.
            pending = parse_instant(name) is not None and ("_" in name or kind_of_plan(name))
            assert found.findings or pending, (how, file)


def kind_of_plan(name: str) -> bool:
    """Whether the file is the only file of a plan without an executor; without it the plan does not exist."""
    return name.endswith((".compaction.requested", ".clustering.requested", ".replacecommit.requested"))


def test_validation_tasks_and_results_can_be_pickled() -> None:
    storage = copy_of(base("LOGS_BUCKET"))
    storage.delete(next(file.path for file in storage.list("") if file.name.endswith(".parquet")))
    loaded = open_as(storage, SURVIVOR).refresh()
    policies = parse_options(stored_options(loaded.config))
    here, there = (validate(loaded, engine, policies, deep=True) for engine in (LocalEngine(), Pickling()))
    assert here == there and here.corrupt


class Pickling(LocalEngine):
    """A thread engine that pickles functions, tasks and results as an engine of processes does."""

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        sent = pickle.loads(pickle.dumps((function, list(tasks))))
        answers: list[R] = pickle.loads(pickle.dumps(super().run(*sent, light=light)))
        return answers
