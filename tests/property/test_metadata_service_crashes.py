"""Writes that crash while they run a service of the metadata table: the next commit finishes or repairs it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.services.run import clean_is_due, instants_to_archive
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.planning.compaction import delta_commits_since, last_compaction
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, Instant, Timeline
from tests.support.killed import (
    BASE,
    RECOVERY,
    Host,
    Rows,
    batch,
    copy_of,
    open_as,
    points,
    rows_of,
    share_of,
)
from tests.support.metadata_files import check_listing, partitions, stored

CRASHED, SURVIVOR = 101, 102
SERVICES = ("compaction", "clean", "log compaction", "archive")
#: Version 6 has no log compaction of the metadata table.
CASES = [*((name, 9) for name in SERVICES), *((name, 6) for name in SERVICES if name != "log compaction")]
OFTEN = {"hoodie.metadata.compact.max.delta.commits": "4"}
OPTIONS: dict[str, dict[str, str]] = {
    "compaction": OFTEN,
    "clean": OFTEN,
    "archive": OFTEN,
    "log compaction": {
        "hoodie.metadata.compact.max.delta.commits": "90",
        "hoodie.metadata.log.compaction.enable": "true",
        "hoodie.metadata.log.compaction.blocks.threshold": "3",
    },
}
WRITTEN: Rows = {("a", "a1"): 7, ("c", "c1"): 7}


def metadata_timeline(storage: Storage) -> Timeline:
    table = load_table(Env(storage=storage))
    return table.metadata.timeline_store.load()


def is_due(storage: Storage, service: str) -> bool:
    timeline = metadata_timeline(storage)
    since = delta_commits_since(timeline, last_compaction(timeline))
    if service == "compaction":
        return last_compaction(timeline) is not None and len(since) >= 4
    if service == "clean":
        return clean_is_due(timeline)
    if service == "log compaction":
        return len(since) >= 6
    return bool(instants_to_archive(timeline, load_table(Env(storage=storage)).timeline))


@cache
def base(service: str, version: int) -> Storage:
    """Return a table with the rows of BASE whose next write runs a service of its metadata table."""
    storage = MemoryStorage()
    Table.create(
        storage.root,
        name="mortal",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        options={"hoodie.metadata.enable": "true", "hoodie.write.table.version": str(version)},
        env=Env(storage=storage, processes=Host(1)),
    )
    options = dict(OPTIONS[service])
    if service == "log compaction":
        options["hoodie.metadata.log.compaction.enable"] = "false"
    for number in range(60):
        open_as(storage, 1, **options).upsert(batch(BASE))
        if service == "archive" and number % 25 == 24:
            # The metadata timeline keeps what the data timeline has.
            open_as(storage, 1, **options).services.archive.run(force=True)
        if is_due(storage, service):
            return storage
    raise AssertionError(f"{service} is never due in version {version}")


def write(storage: Storage, service: str, pid: int, *dead: int) -> None:
    open_as(storage, pid, dead, **OPTIONS[service]).upsert(batch(WRITTEN if pid == CRASHED else RECOVERY))


@cache
def trace(service: str, version: int) -> tuple[str, ...]:
    storage = FaultyStorage(copy_of(base(service, version)))
    before = Counter(instant.action for instant in instants(storage.inner) if instant.is_completed)
    write(storage, service, CRASHED)
    after = Counter(instant.action for instant in instants(storage.inner) if instant.is_completed)
    plans = {instant.action for instant in instants(storage.inner) if not instant.is_completed}
    done = {
        "compaction": after[Action.COMMIT] > before[Action.COMMIT],
        "clean": after[Action.CLEAN] > before[Action.CLEAN],
        "log compaction": Action.LOGCOMPACTION in plans,
        "archive": after[Action.DELTACOMMIT] < before[Action.DELTACOMMIT],
    }
    assert done[service], f"the write ran no {service}"
    return tuple(storage.trace)


def instants(storage: Storage) -> list[Instant]:
    """Return an instant for each file of the metadata timeline."""
    names = [*storage.list_names(f"{METADATA}/.hoodie/timeline"), *storage.list_names(f"{METADATA}/.hoodie")]
    return [instant for name in names if (instant := parse_instant(name)) is not None]


def check(storage: Storage) -> None:
    """Assert that the metadata table has the files of the table, and one base file of each instant in each group."""
    check_listing(storage)
    for name in partitions(storage):
        bases = [file for file in storage.list_names(f"{METADATA}/{name}") if file.endswith(".hfile")]
        groups = Counter((file.split("_")[0], file.split("_")[-1]) for file in bases)
        assert max(groups.values(), default=1) == 1, groups
    metadata = metadata_of(load_table(Env(storage=storage)))
    assert metadata is not None
    files = metadata.listing().to_pylist()
    assert {(f["partition"], f["name"]): f["size_bytes"] for f in files} == {
        (partition, name): size for partition, found in stored(storage).items() for name, size in found.items()
    }


@pytest.mark.parametrize(("service", "version"), CASES)
def test_next_commit_repairs_a_service_of_the_metadata_table_after_a_crash_at_any_step(
    service: str, version: int
) -> None:
    outcomes = set()
    for step, mode in share_of(points(trace(service, version)), service, 3):
        storage = copy_of(base(service, version))
        with pytest.raises(SimulatedCrash):
            write(FaultyStorage(storage, step, mode), service, CRASHED)
        check_listing(storage)
        rows = rows_of(storage)
        assert rows in (BASE, {**BASE, **WRITTEN})
        outcomes.add(rows == BASE)
        write(storage, service, SURVIVOR, CRASHED)
        assert rows_of(storage) == {**rows, **RECOVERY}
        check(storage)
        assert not [instant for instant in metadata_timeline(storage) if not instant.is_completed]
    assert outcomes == {True, False}
