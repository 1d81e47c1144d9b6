"""A plan or write is taken over, resumed or rolled back in a copy of the table without `.hoodie/.temp`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import MARKERS_TYPE
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME
from lakehouse.core.format.timeline.rollback import encode_rollback_plan
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Names, Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.model.commit import RollbackPlan
from lakehouse.model.instant import Action
from tests.support.hudi_rs import read
from tests.support.killed import (
    ADDED,
    BASE,
    CALLS,
    CHANGED,
    INDEXES,
    LOGGED,
    Host,
    Rows,
    batch,
    copy_of,
    leftovers,
    open_as,
    rows_of,
)

CRASHED, SURVIVOR = 101, 102
#: Folders that a copy of a table often lacks.
TEMPORARY = (".hoodie/.temp/", ".hoodie/.staging/", ".hoodie/.heartbeat/")


class Dying(FaultyStorage):
    """Storage of a process that crashes right before it creates its completed instant."""

    def __init__(self, inner: Storage, ending: str) -> None:
        super().__init__(inner)
        self.ending = ending

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        """Crash before the step that would complete the action."""
        self._crashed = self._crashed or (name.startswith("create .hoodie/timeline/") and name.endswith(self.ending))
        return super().step(name, call)


@dataclass(frozen=True, slots=True)
class Act:
    """A service on a table of a kind, and the end of the name of its completed instant."""

    run: Callable[[Table], object]
    kind: str
    ending: str


def cluster(table: Table) -> object:
    return table.services.clustering.run(force=True)


SERVICES = {
    "clustering": Act(cluster, "SIMPLE", ".replacecommit"),
    "clustering of logs": Act(cluster, "LOGS_SIMPLE", ".replacecommit"),
    "compaction": Act(lambda table: table.services.compaction.run(force=True), "LOGS_SIMPLE", ".commit"),
    "log compaction": Act(lambda table: table.services.log_compaction.run(), "LOGS_SIMPLE", ".deltacommit"),
}
WRITES = {
    "insert_overwrite": Act(lambda table: table.insert_overwrite(batch(ADDED)), "SIMPLE", ".replacecommit"),
    "bulk_insert": Act(lambda table: table.bulk_insert(batch(ADDED)), "SIMPLE", ".commit"),
    "upsert": Act(lambda table: table.upsert(batch(CHANGED)), "LOGS_SIMPLE", ".deltacommit"),
}


def made(kind: str, *, metadata: bool) -> MemoryStorage:
    """Return a table with the rows of BASE in several file groups per partition, with logs on merge-on-read."""
    storage = MemoryStorage()
    options = {**INDEXES, **LOGGED}[kind] | CALLS | {"hoodie.metadata.enable": str(metadata).lower()}
    Table.create(
        storage.root,
        name="copied",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type="MERGE_ON_READ" if kind in LOGGED else "COPY_ON_WRITE",
        options=options,
        env=Env(storage=storage, processes=Host(1)),
    )
    for part in range(2):
        rows = {key: 0 for number, key in enumerate(sorted(BASE)) if number % 2 == part}
        opened(storage, 1, metadata=metadata).bulk_insert(batch(rows))
    for _ in range(2):
        opened(storage, 1, metadata=metadata).upsert(batch(BASE))
    return storage


def opened(storage: Storage, pid: int, *, metadata: bool) -> Table:
    """Open the table as a process; the process that crashed does not run any more."""
    dead = (CRASHED,) if pid == SURVIVOR else ()
    return open_as(storage, pid, dead, **{"hoodie.metadata.enable": str(metadata).lower()})


def crash(storage: Storage, act: Act, *, metadata: bool) -> None:
    """Run a service or write in a process that crashes before it commits; its files are written."""
    with pytest.raises(SimulatedCrash):
        act.run(opened(Dying(storage, act.ending), CRASHED, metadata=metadata))


def copy_without(storage: Storage, *folders: str) -> MemoryStorage:
    """Return a copy of a table without the files in some folders."""
    copy = copy_of(storage)
    for file in copy.list(""):
        if file.path.startswith(folders):
            copy.delete(file.path)
    return copy


def data_files(storage: Storage) -> list[str]:
    """Return the paths of base files and logs; the metadata file of a partition may stay after a rollback."""
    files = [file for file in storage.list("") if not file.path.startswith(".hoodie/")]
    return sorted(file.path for file in files if file.name != PARTITION_METADATA_NAME)


def rows_by_hudi_rs(storage: Storage, folder: Path) -> list[tuple[str, str, int]]:
    """Return the rows that hudi-rs reads from a copy on disk, with duplicates."""
    local = LocalStorage(str(folder))
    for file in storage.list(""):
        local.put(file.path, storage.get(file.path))
    rows = read(str(folder)).select(["p", "id", "v"]).to_pylist()
    return sorted((row["p"], row["id"], row["v"]) for row in rows)


def assert_holds(storage: Storage, rows: Rows, folder: Path) -> None:
    """Assert that a table has these rows for both readers, no file without a commit, and no finding."""
    assert rows_of(storage) == rows
    assert leftovers(storage) == []
    assert rows_by_hudi_rs(storage, folder) == sorted((p, key, value) for (p, key), value in rows.items())
    assert open_as(storage, SURVIVOR).validate(deep=True).findings == ()


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "listing"])
@pytest.mark.parametrize("name", SERVICES)
def test_service_taken_over_in_a_copy_without_markers_duplicates_no_row(
    name: str, metadata: bool, tmp_path: Path
) -> None:
    """The class of apache/hudi#14200 and apache/hudi#18783: files of an attempt that no marker names stay."""
    act = SERVICES[name]
    storage = made(act.kind, metadata=metadata)
    crash(storage, act, metadata=metadata)
    copy = copy_without(storage, *TEMPORARY)
    assert isinstance(act.run(opened(copy, SURVIVOR, metadata=metadata)), Committed)
    assert_holds(copy, BASE, tmp_path)


@pytest.mark.parametrize("kept", [".hoodie/.temp/", ".hoodie/.staging/"])
def test_clustering_taken_over_duplicates_no_row_if_markers_or_claims_are_lost(kept: str, tmp_path: Path) -> None:
    """The class of apache/hudi#14200, with one of the two folders that identify an attempt."""
    act = SERVICES["clustering"]
    storage = made(act.kind, metadata=False)
    crash(storage, act, metadata=False)
    copy = copy_without(storage, *(folder for folder in TEMPORARY if folder != kept))
    assert isinstance(act.run(opened(copy, SURVIVOR, metadata=False)), Committed)
    assert_holds(copy, BASE, tmp_path)


def test_clustering_requested_in_a_copy_of_a_running_table_duplicates_no_row(tmp_path: Path) -> None:
    """The class of apache/hudi#18783: `.hoodie` is copied first, the data files after the clustering wrote new ones."""
    storage = made("SIMPLE", metadata=False)
    opened(storage, CRASHED, metadata=False).services.clustering.schedule(force=True)
    timeline = copy_of(storage)
    crash(storage, SERVICES["clustering"], metadata=False)
    for path in data_files(storage):
        timeline.put(path, storage.get(path))
    assert isinstance(cluster(opened(timeline, SURVIVOR, metadata=False)), Committed)
    assert_holds(timeline, BASE, tmp_path)


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "listing"])
@pytest.mark.parametrize("name", WRITES)
def test_rollback_of_a_write_without_markers_leaves_no_file(name: str, metadata: bool, tmp_path: Path) -> None:
    """The class of apache/hudi#14200: the rollback found fewer files than the write had created."""
    act = WRITES[name]
    storage = made(act.kind, metadata=metadata)
    before = data_files(storage)
    crash(storage, act, metadata=metadata)
    copy = copy_without(storage, *TEMPORARY)
    assert data_files(copy) != before
    opened(copy, SURVIVOR, metadata=metadata).rollback_failed()
    assert data_files(copy) == before
    assert_holds(copy, BASE, tmp_path)


def test_rollback_of_a_write_finds_files_that_only_some_of_its_markers_name(tmp_path: Path) -> None:
    """The class of apache/hudi#14200: fewer files were read from the markers than the write had created."""
    storage = made("SIMPLE", metadata=False)
    before = data_files(storage)
    crash(storage, WRITES["insert_overwrite"], metadata=False)
    batches = {file.path: storage.get(file.path) for file in storage.list(".hoodie/.temp") if file.name != MARKERS_TYPE}
    path, names = max(batches.items(), key=lambda batch: len(batch[1]))
    assert names.count(b"\n") > 1
    storage.put(path, names[: names.index(b"\n") + 1])
    opened(storage, SURVIVOR, metadata=False).rollback_failed()
    assert data_files(storage) == before
    assert_holds(storage, BASE, tmp_path)


def test_pending_rollback_of_hudi_without_files_deletes_the_files_of_its_target(tmp_path: Path) -> None:
    """The class of apache/hudi#18783: Hudi plans an empty rollback if the marker directory is missing."""
    storage = made("SIMPLE", metadata=False)
    before = data_files(storage)
    crash(storage, WRITES["bulk_insert"], metadata=False)
    copy = copy_without(storage, *TEMPORARY)
    table = opened(copy, SURVIVOR, metadata=False)
    (target,) = table.timeline.where(pending=True)
    plan = RollbackPlan(target=target.requested, action=str(target.action), requests=())
    loaded = table.refresh()
    loaded.store.request(loaded.timeline, Action.ROLLBACK, encode_rollback_plan(plan, base_path=copy.root))
    opened(copy, SURVIVOR, metadata=False).rollback_failed()
    assert data_files(copy) == before
    assert_holds(copy, BASE, tmp_path)


def test_write_that_fails_after_its_markers_were_deleted_leaves_no_file(tmp_path: Path) -> None:
    """The class of apache/hudi#14200: another program deletes `.hoodie/.temp` while the writer is running."""
    storage = made("SIMPLE", metadata=False)
    before = data_files(storage)

    class Failing(FaultyStorage):
        """Storage that loses the markers, and fails when the write lists the timeline before its commit."""

        def list_names(self, prefix: str) -> Names:
            """Delete the markers and raise an error at each listing after a data file was written."""
            if data_files(self.inner) != before:
                for file in self.inner.list(".hoodie/.temp"):
                    self.inner.delete(file.path)
                raise RetryableError("the storage does not answer")
            return super().list_names(prefix)

    with pytest.raises(RetryableError):
        opened(Failing(storage), CRASHED, metadata=False).bulk_insert(batch(ADDED))
    opened(storage, SURVIVOR, metadata=False).rollback_failed()
    assert data_files(storage) == before
    assert_holds(storage, BASE, tmp_path)


def test_rollback_of_a_write_needs_no_file_with_the_marker_type(tmp_path: Path) -> None:
    """apache/hudi#5591 and apache/hudi#6283: `MARKERS.type` is missing, and the batches of markers exist."""
    storage = made("SIMPLE", metadata=False)
    before = data_files(storage)
    crash(storage, WRITES["insert_overwrite"], metadata=False)
    (kind,) = [file.path for file in storage.list(".hoodie/.temp") if file.name == MARKERS_TYPE]
    storage.delete(kind)
    opened(storage, SURVIVOR, metadata=False).rollback_failed()
    assert data_files(storage) == before
    assert_holds(storage, BASE, tmp_path)
