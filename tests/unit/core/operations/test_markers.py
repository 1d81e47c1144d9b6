"""Markers of a write: one object for many files, created before its files, and deleted after failed attempts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine import adapters as engine_module
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.stage.markers import MarkerBatch, read_markers
from lakehouse.core.format.file_names import (
    decode_markers,
    encode_markers,
    marked_file,
    parse_base_file,
    write_token_of,
)
from lakehouse.core.operations.write import staged
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import OutputFile, Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.model.attempt import Attempt
from tests.support.killed import BASE, CHANGED, base_table, copy_of, leftovers, logged_table, open_as, rows_of
from tests.support.killed import batch as changes
from tests.support.tables import Shape, batch, check_storage, data_rows, make_env, make_table, row

BATCHED, DIRECT = "TIMELINE_SERVER_BASED", "DIRECT"
TYPE = "hoodie.write.markers.type"
TEMP = ".hoodie/.temp/"
#: Bucketed tables whose logs are rolled over at once.
ROLLING = Shape(type="MERGE_ON_READ", index="BUCKET", buckets=1)
SMALL_LOGS = {"hoodie.logfile.max.size": "1", "lakehouse.write.memory.budget": "65536"}


class Watched(FaultyStorage):
    """Checks at each opening of a file that a marker names it; records the objects that contain markers."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.objects: set[str] = set()
        self.named: set[str] = set()
        self.files = 0

    @property
    def requests(self) -> int:
        """Return the number of writes of marker objects."""
        return sum(TEMP in step and not step.startswith(("list", "delete", "get")) for step in self.trace)

    def open_output(self, path: str) -> OutputFile:
        if not path.startswith(".hoodie/"):
            self.files += 1
            if path not in self.named:
                (instant,) = {f.path.split("/")[2] for f in self.inner.list(TEMP.rstrip("/"))}
                found = read_markers(self.inner, instant)
                self.objects |= {name for name, markers in found.items() if markers}
                self.named |= {marked_file(marker) for markers in found.values() for marker in markers}
            assert path in self.named
        return super().open_output(path)


def watched(storage: Storage, **options: str) -> tuple[Table, Watched]:
    """Return the table of a storage, and the storage that records its requests."""
    watch = Watched(storage)
    env = make_env(storage=watch)
    return Table.open(watch.root, options=options, env=env), watch


def partitions(count: int, ts: int = 1) -> pa.Table:
    """Return one row for each of `count` partitions."""
    return batch(row(f"k{n}", p=f"p{n:03d}", ts=ts) for n in range(count))


@pytest.mark.parametrize("verb", ["bulk_insert", "upsert"])
@pytest.mark.parametrize("markers", [BATCHED, DIRECT])
def test_write_of_two_hundred_files_creates_one_marker_object_per_task(verb: str, markers: str) -> None:
    storage = make_table(Shape(options={"hoodie.index.type": "SIMPLE"})).refresh().env.storage
    table, watch = watched(storage, **{TYPE: markers})
    getattr(table, verb)(partitions(200))
    assert watch.files == 200
    # A bulk insert announces the files of all partitions in one object; an upsert knows its files at the start.
    assert len(watch.objects) == (1 if markers == BATCHED else 200)
    assert watch.requests == (2 if markers == BATCHED else 200)
    assert watch.list(TEMP) == []


def test_commit_of_two_hundred_files_needs_a_fixed_number_of_requests() -> None:
    """Batched markers save 198 PUT requests and a listing, and add no other request."""
    counts = {}
    for markers in (BATCHED, DIRECT):
        storage = CountingStorage(make_table().refresh().env.storage)
        table = Table.open(storage.root, options={TYPE: markers}, env=make_env(storage=storage))
        table.upsert(partitions(200))
        storage.reset()
        table.upsert(partitions(200, ts=2))
        counts[markers] = storage.counts()
    fewer = {verb: counts[DIRECT][verb] - counts[BATCHED][verb] for verb in counts[DIRECT]}
    assert fewer == {"LIST": 1, "GET": 0, "PUT": 198, "HEAD": 0, "DELETE": 0}


def test_write_of_one_file_needs_a_request_for_the_marker_type_instead_of_a_listing() -> None:
    counts = {}
    for markers in (BATCHED, DIRECT):
        storage = CountingStorage(make_table().refresh().env.storage)
        table = Table.open(storage.root, options={TYPE: markers}, env=make_env(storage=storage))
        table.upsert(partitions(1))
        storage.reset()
        table.upsert(partitions(1, ts=2))
        counts[markers] = storage.counts()
    assert {verb: counts[BATCHED][verb] - n for verb, n in counts[DIRECT].items()} == {
        **dict.fromkeys(counts[DIRECT], 0),
        "PUT": 1,
        "LIST": -1,
    }


def test_task_doubles_the_announced_files_at_each_rollover() -> None:
    table = make_table(ROLLING)
    table.upsert(batch(row(f"k{n}") for n in range(4_000)))
    watched_table, watch = watched(table.refresh().env.storage, **SMALL_LOGS)
    watched_table.upsert(batch(row(f"k{n}", ts=2) for n in range(4_000)))
    assert watch.files > 8
    # The driver announces the first file; the task announces files 2-3, 4-7, 8-15 and so on, in its own object.
    assert len(watch.objects) == 2
    assert watch.requests == 2 + (watch.files.bit_length() - 1)
    check_storage(watched_table)


def test_files_of_several_partitions_are_announced_in_one_marker_object() -> None:
    table, watch = watched(make_table(Shape(rows_per_file=1)).refresh().env.storage)
    rows = [row(f"k{n}", p=f"p{n % 4}", v=str(n) * 90) for n in range(3_000)]
    small = Table.open(
        watch.root,
        options={"hoodie.parquet.max.file.size": "4000", "lakehouse.write.memory.budget": "65536"},
        env=table.refresh().env,
    )
    small.bulk_insert(pa.concat_tables(batch(rows[start : start + 100]) for start in range(0, 3_000, 100)))
    assert watch.files >= 12 and len(watch.objects) == 1
    assert watch.requests <= 2 + 2 * (watch.files.bit_length() + 1)
    check_storage(small)


class RepeatingEngine(LocalEngine):
    """Runs each task twice and drops the first result, as if an executor failed after its task."""

    runs_once = False

    def run(self, function: Any, tasks: Sequence[Any], *, light: bool = False) -> list[Any]:
        """Return the results of the second attempts."""

        def twice(attempt: Attempt, task: Any) -> Any:
            function(attempt, task)
            return function(replace(attempt, number=attempt.number + 7, first=False), task)

        return super().run(twice, tasks, light=light)


@pytest.mark.parametrize("markers", [BATCHED, DIRECT])
@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_commit_keeps_the_files_of_one_try_of_a_repeated_task(
    type: str, markers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs_changes = {"hoodie.table.cdc.enabled": str(type == "COPY_ON_WRITE").lower()}
    table = make_table(Shape(type=type, options=logs_changes))
    table.upsert(partitions(5))
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "LocalEngine", RepeatingEngine)
        # Little work needs no tasks, and is not repeated.
        patch.setattr(staged, "_BYTES_HERE", -1)
        patch.setattr(staged, "_REWRITTEN_HERE", -1)
        again, watch = watched(table.refresh().env.storage, **{TYPE: markers})
        again.upsert(partitions(5, ts=2))
        if type == "MERGE_ON_READ":
            again.services.compaction.run(force=True)
    stats = [stat for _, metadata in again.commits()[1:] for stat in metadata.stats]
    assert {(write_token_of(stat.path) or "").rpartition("-")[2] for stat in stats} == {"7"}
    if markers == BATCHED:
        assert len(watch.objects) == (1 + 5) * (2 if type == "MERGE_ON_READ" else 1), "one per driver and attempt"
    assert {r["ts"] for r in data_rows(again)} == {2}
    made = [stat.path for _, metadata in again.commits() for stat in metadata.stats]
    made += [path for stat in stats for path in stat.cdc_files]
    found = [f.path for f in again.refresh().env.storage.list("") if not f.path.startswith(".hoodie/")]
    assert sorted(made) == [path for path in found if ".hoodie_partition_metadata" not in path]
    assert again.refresh().env.storage.list(TEMP) == []


def test_commit_does_not_look_for_announced_files_that_were_never_created() -> None:
    table = make_table(ROLLING)
    rows = [row(f"k{n}") for n in range(4_000)]
    table.upsert(batch(rows))
    again, watch = watched(table.refresh().env.storage, **SMALL_LOGS)
    again.upsert(batch(r | {"ts": 2} for r in rows))
    assert watch.files > 8
    assert not [step for step in watch.trace if step.startswith("delete a/")]


def test_write_without_changes_deletes_its_markers() -> None:
    table = make_table(Shape(options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}))
    table.upsert(batch([row("k1")]))
    again, watch = watched(table.refresh().env.storage)
    outcome = again.delete(batch([row("k2")]).select(["id", "p"]))
    assert watch.requests == 2 and watch.files == 0, outcome
    assert len(again.timeline.instants) == 1 and again.refresh().env.storage.list(TEMP) == []


@pytest.mark.parametrize("storage", ["SIMPLE", "BUCKET", "LOGS_BUCKET"])
def test_direct_markers_name_all_files_to_delete_after_a_crash_at_any_step(storage: str) -> None:
    made = logged_table if storage.startswith("LOGS") else base_table
    base = made(MemoryStorage(), storage)
    probe = FaultyStorage(copy_of(base))
    open_as(probe, 101, **{TYPE: DIRECT}).upsert(changes(CHANGED))
    marked = [n for n, step in enumerate(probe.trace, 1) if TEMP in step or step.startswith(("open_output", "close"))]
    for step, markers in itertools.product(marked, (BATCHED, DIRECT)):
        dying, other = copy_of(base), {BATCHED: DIRECT, DIRECT: BATCHED}[markers]
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(dying, step, FaultMode.CRASH_AFTER), 101, **{TYPE: DIRECT}).upsert(changes(CHANGED))
        before = rows_of(dying)
        # The next writer may use another marker type.
        open_as(dying, 102, [101], **{TYPE: other}).upsert(changes({("d", "d1"): 9}))
        assert rows_of(dying) == {**before, ("d", "d1"): 9}
        assert before in (BASE, {**BASE, **CHANGED})
        assert leftovers(dying) == []


def names(*numbers: int) -> list[str]:
    """Return some markers."""
    return [f"p/f{n}-0_0-0-0_20250101000000000.parquet.marker.CREATE" for n in numbers]


def test_marker_batch_never_shrinks_by_a_late_request() -> None:
    storage = MemoryStorage()
    batch_, other = MarkerBatch(storage, "1", 5), MarkerBatch(storage, "1", 5)
    batch_.write(names(1))
    other.write(names(9))
    assert (batch_.path, other.path) == (f"{TEMP}1/MARKERS5", f"{TEMP}1/MARKERS6")
    late = storage.get_tagged(f"{TEMP}1/MARKERS5")[1]
    batch_.write(names(1, 2))
    assert storage.replace_if(f"{TEMP}1/MARKERS5", encode_markers(names(1)), late) is None
    assert read_markers(storage, "1") == {batch_.path: tuple(names(1, 2)), other.path: tuple(names(9))}


def test_marker_batch_is_recreated_with_all_names_after_its_deletion() -> None:
    storage = MemoryStorage()
    first = MarkerBatch(storage, "1", (1 << 31) + 3)
    first.write(names(1))
    storage.delete(first.path or "")
    first.write(names(1, 2))
    assert first.path == f"{TEMP}1/MARKERS3"
    assert read_markers(storage, "1") == {first.path: tuple(names(1, 2))}


def test_unknown_state_of_markers_raises_a_retryable_error() -> None:
    class Silent(FaultyStorage):
        def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
            if TEMP in path:
                raise CommitStateUnknownError("no answer")
            return super().replace_if(path, data, tag)

        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            if TEMP in path:
                raise CommitStateUnknownError("no answer")
            return super().create(path, data, unique=unique)

    with pytest.raises(RetryableError, match="no answer"):
        MarkerBatch(Silent(MemoryStorage()), "1", 0).write(names(1))
    for markers in (BATCHED, DIRECT):
        storage = base_table(MemoryStorage(), "SIMPLE")
        with pytest.raises(RetryableError, match="no answer"):
            open_as(Silent(storage), 101, **{TYPE: markers}).upsert(changes(CHANGED))
        assert rows_of(storage) == BASE and leftovers(storage) == []


def test_read_markers_reads_batches_of_other_writers() -> None:
    (name,) = names(1)
    assert decode_markers(f"{name}\n/{names(2)[0]}\np/half-a-na".encode()) == (name, names(2)[0])
    assert decode_markers(b"") == ()
    assert marked_file(name) == "p/f1-0_0-0-0_20250101000000000.parquet"
    file = parse_base_file("f1-0_0-0-0_20250101000000000.parquet", "p", 0)
    assert file is not None and write_token_of(marked_file(name)) == file.write_token
    assert write_token_of("p/.f-0_20250101000000000.log.1_3-4-5.cdc") == "3-4-5"
    assert write_token_of("p/whatever") is None
