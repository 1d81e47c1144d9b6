"""The services of the metadata table: what they keep, when they run, and what they cost."""

from __future__ import annotations

from collections import Counter

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.metadata.hfiles import open_hfile
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Action, Instant
from tests.support.metadata_files import check_listing, partitions, records
from tests.support.tables import Shape, batch, data_rows, make_table, row

TIMELINE = f"{METADATA}/.hoodie/timeline"
EVERY_4 = {"hoodie.metadata.enable": "true", "hoodie.metadata.compact.max.delta.commits": "4"}


def table_of(kind: str = "COPY_ON_WRITE", **options: str) -> Table:
    return make_table(Shape(type=kind, options={**EVERY_4, **options}))


def storage_of(table: Table) -> Storage:
    return table.refresh().env.storage


def instants(storage: Storage) -> list[Instant]:
    return [instant for name in storage.list_names(TIMELINE) if (instant := parse_instant(name)) is not None]


def completed(storage: Storage) -> Counter[Action]:
    return Counter(instant.action for instant in instants(storage) if instant.is_completed)


def write(table: Table, number: int) -> None:
    table.upsert(batch([row(f"k{number}", p="abc"[number % 3], ts=number), row("k0", p="a", ts=number)]))


def contents(storage: Storage) -> dict[str, object]:
    return {name: records(storage, name) for name in partitions(storage)}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_table_is_compacted_after_the_declared_number_of_commits(kind: str) -> None:
    table = table_of(kind)
    for number in range(14):
        write(table, number)
        check_listing(storage_of(table))
    storage = storage_of(table)
    assert completed(storage)[Action.COMMIT] >= 2
    for name in partitions(storage):
        bases = [file for file in storage.list_names(f"{METADATA}/{name}") if file.endswith(".hfile")]
        assert bases
        for base in bases:
            assert open_hfile(storage, f"{METADATA}/{name}/{base}").entries().num_rows >= 0
    # Each group has the base files of at most the two newest compactions and of the commits until a clean.
    assert len([file for file in storage.list_names(f"{METADATA}/files") if file.endswith(".hfile")]) <= 3


def test_old_slices_are_cleaned_and_instants_archived() -> None:
    table = table_of()
    for number in range(45):
        write(table, number)
    storage = storage_of(table)
    check_listing(storage)
    assert completed(storage)[Action.CLEAN] >= 1
    names = storage.list_names(f"{METADATA}/files")
    assert len(names) <= 20, names
    # A rollback may need the delta commit of each instant of the data timeline.
    assert {i.requested for i in table.refresh().timeline.writes()} <= {i.requested for i in instants(storage)}
    before = len(instants(storage))
    table.services.archive.run(force=True)
    for number in range(45, 60):
        write(table, number)
        check_listing(storage)
    assert [file for file in storage.list(f"{TIMELINE}/history") if file.path.endswith(".parquet")]
    assert len(instants(storage)) < before
    assert {i.requested for i in table.refresh().timeline.writes()} <= {i.requested for i in instants(storage)}
    table.services.archive.run(force=True)
    write(table, 99)
    check_listing(storage)


def test_log_compaction_keeps_the_contents() -> None:
    table = table_of(
        **{"hoodie.metadata.compact.max.delta.commits": "50"},
        **{"hoodie.metadata.log.compaction.enable": "true", "hoodie.metadata.log.compaction.blocks.threshold": "3"},
    )
    plain = table_of(**{"hoodie.metadata.compact.max.delta.commits": "50"})
    for number in range(12):
        write(table, number)
        write(plain, number)
    storage = storage_of(table)
    plans = [instant for instant in instants(storage) if instant.action is Action.LOGCOMPACTION]
    assert len(plans) >= 2
    check_listing(storage)
    table.with_options({"hoodie.metadata.compact.max.delta.commits": "5"}).upsert(batch([row("late", p="b")]))
    assert completed(storage)[Action.COMMIT] == 1
    check_listing(storage)


def test_archive_of_the_data_table_keeps_commits_that_the_metadata_table_has_not_compacted() -> None:
    table = table_of(**{"hoodie.metadata.compact.max.delta.commits": "50"})
    for number in range(6):
        write(table, number)
    kept = {"hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2", "hoodie.clean.commits.retained": "1"}
    outcome = table.with_options(kept).services.archive.run(force=True)
    assert isinstance(outcome, NothingToDo) and outcome.reason == "the metadata table was not compacted yet"
    write(table.with_options({"hoodie.metadata.compact.max.delta.commits": "3"}), 6)
    (compaction,) = [i for i in instants(storage_of(table)) if i.is_completed and i.action is Action.COMMIT]
    write(table, 7)
    outcome = table.with_options(kept).services.archive.run(force=True)
    assert isinstance(outcome, Archived)
    left = [commit for commit in table.refresh().timeline.writes() if commit.completion > compaction.requested]
    assert len(left) == 2 and all(instant.completion < compaction.requested for instant in outcome.instants)
    check_listing(storage_of(table))


@pytest.mark.parametrize("state", ["requested", "inflight"])
def test_pending_compaction_is_finished_by_the_next_commit(state: str) -> None:
    table = table_of()
    number = 0
    while not completed(storage_of(table))[Action.COMMIT]:
        write(table, number)
        number += 1
    storage = storage_of(table)
    (done,) = [i for i in instants(storage) if i.is_completed and i.action is Action.COMMIT]
    # As after a crash: the base files exist, and the compaction is not completed.
    storage.delete(f"{TIMELINE}/{done.requested}_{done.completed}.commit")
    if state == "requested":
        storage.delete(f"{TIMELINE}/{done.requested}.compaction.inflight")
    check_listing(storage)
    write(table, number)
    check_listing(storage)
    again = [i for i in instants(storage) if i.is_completed and i.action is Action.COMMIT]
    assert [i.requested for i in again] == [done.requested]
    bases = [file for file in storage.list_names(f"{METADATA}/files") if file.endswith(f"_{done.requested}.hfile")]
    assert len(bases) == 1


def test_compaction_plan_without_its_files_is_removed() -> None:
    table = table_of()
    for number in range(2):
        write(table, number)
    storage = storage_of(table)
    storage.put(f"{TIMELINE}/20300101000000000.compaction.requested", b"")
    write(table, 2)
    assert not [i for i in instants(storage) if i.requested == "20300101000000000"]
    check_listing(storage)


def test_failed_compaction_fails_the_write_unless_declared_otherwise() -> None:
    table = table_of(**{"hoodie.metadata.compact.max.delta.commits": "50"})
    for number in range(3):
        write(table, number)
    storage = storage_of(table)
    log = max(name for name in storage.list_names(f"{METADATA}/files") if ".log." in name)
    content = storage.get(f"{METADATA}/files/{log}")
    storage.put(f"{METADATA}/files/{log}", content[: len(content) // 2])
    due = {"hoodie.metadata.compact.max.delta.commits": "3"}

    def another_process(**options: str) -> Table:
        """Return the table without what this process keeps of the files that it wrote."""
        env = Env(storage=storage)
        return Table.open(storage.root, env=env, options={"hoodie.metadata.enable": "true", **due, **options})

    with pytest.raises(CorruptTableError, match=f"{log}.* has a damaged block"):
        write(another_process(), 3)
    rows = len(data_rows(table))
    write(another_process(**{"hoodie.metadata.write.fail.on.table.service.failures": "false"}), 3)
    assert len(data_rows(table)) == rows + 1
    storage.put(f"{METADATA}/files/{log}", content)
    write(another_process(), 4)
    check_listing(storage)
    assert completed(storage)[Action.COMMIT] == 1


def test_commit_without_due_service_sends_no_request_for_services() -> None:
    """The number of requests of a commit does not depend on the age of the table, except for the due services."""
    counting = CountingStorage(MemoryStorage())
    table = make_table(Shape(options=EVERY_4), env=Env(storage=counting))
    costs: dict[str, list[int]] = {"none": [], "compaction": [], "clean": [], "archive": []}
    for number in range(30):
        before = completed(counting)
        counting.reset()
        table.upsert(batch([row("k0", p="a", ts=number)]))
        requests = sum(counting.counts().values())
        done = completed(counting) - before
        service = "compaction" if done[Action.COMMIT] else "clean" if done[Action.CLEAN] else "none"
        service = "archive" if before - completed(counting) else service
        costs[service].append(requests)
    assert min(len(costs[service]) for service in ("none", "compaction", "clean")) >= 4, costs
    plain = costs["none"][2:]
    assert set(plain) == {plain[0]}, plain
    names = partitions(counting)
    groups = sum(
        len({name.split("_")[0].lstrip(".") for name in counting.list_names(f"{METADATA}/{n}")} - {""}) for n in names
    )
    # Plan, inflight, commit, properties and the timeline; for each partition the folder; for each group its base file,
    # four logs and the new base file.
    assert max(costs["compaction"]) - plain[0] <= 9 + len(names) + 6 * groups, (costs, groups)
    # Plan, inflight, one request that deletes, commit, properties, timeline and archive; for each partition the folder.
    assert max(costs["clean"]) - plain[0] <= 17 + len(names), costs


def test_services_list_no_folder_whose_files_this_process_wrote() -> None:
    counting = CountingStorage(MemoryStorage())
    table = make_table(Shape(options=EVERY_4), env=Env(storage=counting))
    for number in range(6):
        write(table, number)
    before = completed(counting)
    counting.reset()
    for number in range(6, 40):
        write(table, number)
    done = completed(counting) - before
    assert done[Action.COMMIT] >= 4
    assert done[Action.CLEAN] >= 2
    folders = [f"{METADATA}/{name}" for name in partitions(counting)]
    assert [path for path in counting.listed() if path in folders] == []


def test_services_list_the_folders_again_after_a_commit_of_another_process() -> None:
    table = table_of()
    storage = storage_of(table)
    other = Table.open(storage.root, env=Env(storage=storage), options=EVERY_4)
    for number in range(40):
        write((table, other)[number % 3 == 1], number)
        check_listing(storage)
    assert completed(storage)[Action.COMMIT] >= 4
    assert completed(storage)[Action.CLEAN] >= 2


def test_checksum_files_of_hadoop_are_no_file_groups() -> None:
    table = table_of()
    write(table, 0)
    storage = storage_of(table)
    for name in storage.list_names(f"{METADATA}/files"):
        storage.put(f"{METADATA}/files/.{name}.crc", b"crc\0")
    for number in range(1, 6):
        write(Table.open(storage.root, env=Env(storage=storage), options=EVERY_4), number)
    check_listing(storage)
    logs = [name for name in storage.list_names(f"{METADATA}/files") if ".log." in name and not name.endswith(".crc")]
    assert {name.split("_")[0] for name in logs} == {".files-0000-0"}


def test_change_of_columns_leaves_due_services_to_the_next_write() -> None:
    """A compaction of all listings and statistics would take longer than the change itself."""
    table = table_of()
    for number in range(4):
        write(table, number)
    storage = storage_of(table)
    before = completed(storage)[Action.COMMIT]
    table.alter().add_column("w", "string").execute()
    table.alter().rename_column("w", "u").execute()
    assert completed(storage)[Action.COMMIT] == before
    assert completed(storage)[Action.DELTACOMMIT] >= 6
    write(table, 4)
    assert completed(storage)[Action.COMMIT] == before + 1
    check_listing(storage)
    assert len(data_rows(table)) == 5


def test_many_changes_of_columns_run_services_once_twice_as_many_commits_wait() -> None:
    table = table_of()
    write(table, 0)
    counts = []
    for number in range(12):
        table.alter().add_column(f"c{number}", "string").execute()
        counts.append(completed(storage_of(table))[Action.COMMIT])
    assert counts[0] == 0 and counts[-1] == 1, counts
    check_listing(storage_of(table))
