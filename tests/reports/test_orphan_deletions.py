"""Orphan cleaning deletes a file only if it is old and no reader of any retained instant can need it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.orphan_removal import RemovedOrphans
from lakehouse.core.planning.orphans import OrphanPlan
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.commits import completed_commits
from tests.support.tables import Shape, batch, data_rows, log_files, make_table, row
from tests.support.upgraded import COMPACTED, PENDING, set_property, unpacked, upgrade

#: Every file is old enough, and readers list files.
NOW = {"lakehouse.clean.orphans.hours": "0", "hoodie.metadata.enable": "false"}
SHARED = {"lakehouse.clean.orphans.shared": "true"}
TABLES = pytest.mark.parametrize("name", [COMPACTED, PENDING])


def updated(**options: str) -> Table:
    """Return a merge-on-read table with two updates of one key, whose log files belong to one slice."""
    table = make_table(Shape(type="MERGE_ON_READ", options=NOW | options))
    for version in range(3):
        table.upsert(batch([row("a", v=str(version), ts=version)]))
    return table


def opened(table: Table, **options: str) -> Table:
    return Table.open(table.location, options=NOW | options, env=table.refresh().env)


def storage_of(table: Table) -> Storage:
    return table.refresh().env.storage


def stored(table: Table, path: str) -> bool:
    return path in {file.path for file in storage_of(table).list("")}


def repeated_log(table: Table) -> str:
    """Leave the log file of a second attempt of the newest commit, and return its path."""
    storage = storage_of(table)
    newest = max(log_files(storage), key=lambda log: log.instant)
    path = newest.path.replace(newest.write_token, "9-9-9")
    storage.put(path, storage.get(newest.path))
    return path


def of_another_program(table: Table) -> None:
    """Give a commit another sync marker, which is random in files of other programs."""
    storage = storage_of(table)
    path = completed_commits(storage)[0]
    data = storage.get(path)
    storage.put(path, data.replace(data[-16:], os.urandom(16)))


@TABLES
def test_orphans_of_an_upgraded_table_are_none_of_its_live_logs(name: str, tmp_path: Path) -> None:
    """apache/iceberg#4346, apache/amoro#1959: cleaning of orphans removed files that readers needed."""
    path = unpacked(name, tmp_path)
    files = {file for file in Path(path).rglob("*") if file.is_file() and ".hoodie" not in file.parts}
    table = Table.open(path, options=NOW)
    wanted = table.scan().to_arrow().sort_by("id")
    assert table.services.orphans() == ()
    assert isinstance(table.services.orphan_removal.plan(force=True), NothingToDo)
    assert isinstance(table.with_options(SHARED).services.orphan_removal.run(force=True), NothingToDo)
    assert {file for file in files if not file.is_file()} == set()
    assert Table.open(path).scan().to_arrow().sort_by("id").equals(wanted)


@TABLES
@pytest.mark.parametrize("deep", [False, True])
def test_validation_of_an_upgraded_table_recommends_no_deletion_of_its_logs(
    name: str, deep: bool, tmp_path: Path
) -> None:
    """apache/iceberg#4346: the report names the command that deletes what it calls orphans."""
    findings = Table.open(unpacked(name, tmp_path)).validate(deep=deep).findings
    assert [found for found in findings if found.invariant in ("file.orphan", "log.instant", "log.readable")] == []


@pytest.mark.parametrize("kind", ["base", "log"])
def test_logs_of_a_slice_are_no_orphans_whichever_version_named_them(kind: str) -> None:
    """apache/iceberg#4346: a file is compared with every name that a reader may know it by."""
    index = {"hoodie.index.type": "BUCKET", "lakehouse.bucket.inserts": kind} if kind == "log" else {}
    table = updated(**index)
    upgrade(table)
    names = [log.path for log in log_files(storage_of(table))]
    assert len({log.instant for log in log_files(storage_of(table))}) == 1 < len(names)
    table = opened(table, **index, **SHARED)
    assert table.services.orphans(remove=True) == ()
    assert [log.path for log in log_files(storage_of(table))] == names
    assert [r["v"] for r in data_rows(table, ["v"])] == ["2"]


def test_log_of_a_repeated_task_is_deleted_from_a_table_of_one_program() -> None:
    """apache/hudi#7969: two attempts of a task leave log files of one instant, and the commit names one of them."""
    table = updated()
    path = repeated_log(table)
    assert [orphan.path for orphan in table.services.orphans(remove=True)] == [path]
    assert not stored(table, path) and [r["v"] for r in data_rows(table, ["v"])] == ["2"]


def test_log_that_another_commit_names_is_no_orphan() -> None:
    """apache/iceberg#4346: the commit of the instant in a name is not the only one that may name the file."""
    table = updated()
    storage = storage_of(table)
    upgrade(table)
    set_property(storage, "hoodie.table.initial.version", "9")
    table = opened(table)
    assert table.services.orphans() == ()


@pytest.mark.parametrize("shared", [False, True])
def test_orphans_of_a_table_that_another_program_writes_are_deleted_only_on_demand(shared: bool) -> None:
    """apache/iceberg#10363, apache/amoro#1959: files that one program does not know are not therefore orphans."""
    table = updated()
    path = repeated_log(table)
    of_another_program(table)
    table = opened(table, **(SHARED if shared else {}))
    plan = table.services.orphan_removal.plan(force=True)
    assert isinstance(plan, OrphanPlan) and [orphan.path for orphan in plan.orphans] == [path]
    assert [orphan.path for orphan in table.services.orphans()] == [path]
    outcome = table.services.orphan_removal.run(force=True)
    if shared:
        assert isinstance(outcome, RemovedOrphans) and not stored(table, path)
        return
    assert isinstance(outcome, NothingToDo) and "another program wrote the deltacommit" in outcome.reason
    with pytest.raises(UserError, match=r"1 orphan file .*lakehouse\.clean\.orphans\.shared=true"):
        table.services.orphans(remove=True)
    assert stored(table, path)


@pytest.mark.parametrize("value", ["6", None])
def test_orphans_of_a_table_that_another_program_created_are_reported(value: str | None) -> None:
    """apache/iceberg#10363: a table that Hudi created or upgraded may have files by other rules."""
    table = updated()
    storage = storage_of(table)
    (base,) = {log.file_id: log for log in log_files(storage)}.values()
    stray = f"a/{base.file_id}_9-9-9_{table.timeline.writes().instants[0].requested}.parquet"
    storage.put(stray, b"of a repeated task")
    set_property(storage, "hoodie.table.initial.version", value)
    table = opened(table)
    assert [orphan.path for orphan in table.services.orphans()] == [stray]
    outcome = table.services.orphan_removal.run(force=True)
    assert isinstance(outcome, NothingToDo) and "created" in outcome.reason and stored(table, stray)
