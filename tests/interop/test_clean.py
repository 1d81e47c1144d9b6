"""Clean: Hudi and lakehouse delete the same files, execute plans of each other and use the table afterwards."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.avro.object_file import read_record
from lakehouse.core.format.timeline.clean import (
    decode_clean_metadata,
    decode_clean_plan,
    encode_clean_metadata,
    encode_clean_plan,
)
from lakehouse.core.format.timeline.schemas import CLEAN_METADATA, CLEANER_PLAN
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action, Instant, State
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.test_failures_and_upgrades import HUDI_UPSERT
from tests.interop.test_writes_to_hudi_tables import BASE, PARTITIONED
from tests.support import hudi_rs
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, data_rows, make_table, row

pytestmark = pytest.mark.jvm

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
NO_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
#: Arguments of Hudi's procedure, and the equal options of lakehouse.
POLICIES = {
    "commits": ("retain_commits => 3", {"hoodie.clean.commits.retained": "3"}),
    "versions": (
        "clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 2",
        {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "2"},
    ),
}


def table_with_history(directory: Path, kind: str, *, savepoint: bool = True, cdc: bool = False) -> Table:
    """Return a table after updates, an overwrite and, for merge on read, compactions.

    It has a savepoint, or else a deleted partition.
    """
    options = {"hoodie.table.cdc.enabled": "true"} if cdc else {}
    shape = Shape(type=kind, rows_per_file=1_000, merge="commit" if cdc else "event", options=options)
    table = make_table(shape, env=Env(storage=open_storage(str(directory / "table"))))
    table.insert(batch([row(f"k{n}", p="abc"[n % 3], v="v0") for n in range(9)]))
    for number in range(1, 4):
        table.upsert(batch([row(f"k{n}", p="ab"[n % 2], ts=number + 1, v=f"v{number}") for n in range(2)]))
        if kind == "MERGE_ON_READ" and number != 2:
            table.services.compaction.run(force=True)
        if number == 2 and savepoint:
            table.savepoint()
    table.insert_overwrite(batch([row("z", p="b", v="overwritten")]))
    if not savepoint:
        table.delete_partitions(["c"])
    for number in range(4, 8):
        table.upsert(batch([row("k0", p="a", ts=number + 1, v=f"v{number}"), row("z", p="b", ts=number)]))
        if kind == "MERGE_ON_READ" and number % 2:
            table.services.compaction.run(force=True)
    return table


def copied(table: Table, name: str, options: dict[str, str] | None = None) -> Table:
    """Return a copy of the table."""
    copy = Path(table.location).with_name(name)
    shutil.copytree(table.location, copy)
    return Table.open(str(copy), options=options)


def run_hudi_clean(hudi: Hudi, table: Table, arguments: str = POLICIES["commits"][0]) -> None:
    hudi.sql(f"CALL run_clean(table => '{{table}}', {arguments})", table=table.location, **NO_METADATA_TABLE)


def files(table: Table) -> set[str]:
    """Return the paths of all files below the partitions."""
    return {f.path for f in table.refresh().env.storage.list("") if not f.path.startswith(".hoodie/")}


def newest_clean(table: Table) -> Instant:
    return table.timeline.where(action=Action.CLEAN).instants[-1]


def content(table: Table, state: State) -> bytes:
    loaded = table.refresh()
    data = loaded.store.read(newest_clean(table), state)
    assert data is not None
    return data


def plan_of(table: Table) -> CleanPlan:
    return decode_clean_plan(content(table, State.REQUESTED), base_path=table.location)


def schema_in(data: bytes) -> object:
    start = data.index(b'{"type"')
    return json.JSONDecoder().raw_decode(data[start:].decode(errors="replace"))[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_clean_deletes_and_records_the_same_files_as_hudi(kind: str, policy: str, hudi: Hudi, tmp_path: Path) -> None:
    arguments, options = POLICIES[policy]
    kept = (kind, policy) in (("COPY_ON_WRITE", "versions"), ("MERGE_ON_READ", "commits"))
    theirs = table_with_history(tmp_path, kind, savepoint=kept, cdc=kind == "COPY_ON_WRITE")
    ours = copied(theirs, "ours", options)
    run_hudi_clean(hudi, theirs, arguments)
    outcome = ours.services.clean.run()
    assert isinstance(outcome, Cleaned)
    assert kept or outcome.metadata.partitions["c"].is_deleted
    assert files(ours) == files(theirs)
    plans = plan_of(ours), plan_of(theirs)
    assert [{p: set(names) for p, names in plan.files.items()} for plan in plans[:1]] == [
        {p: set(names) for p, names in plan.files.items()} for plan in plans[1:]
    ]
    assert replace(plans[0], files={}) == replace(plans[1], files={})
    completed = [decode_clean_metadata(content(table, State.COMPLETED)) for table in (ours, theirs)]
    first, second = (replace(one, start_time="", seconds=0, partitions={}) for one in completed)
    assert first == second
    parts = [
        {name: (p.policy, set(p.deleted), p.failed, p.is_deleted) for name, p in one.partitions.items()}
        for one in completed
    ]
    assert parts[0] == parts[1]
    assert_same_bytes(theirs)
    assert data_rows(ours, ["id", "v"]) == data_rows(theirs, ["id", "v"])
    # The next clean starts from the metadata that the other implementation's clean wrote.
    for number in range(3):
        for table in (ours, theirs):
            table.upsert(batch([row("k0", p="a", ts=20 + number, v=f"more {number}")]))
    run_hudi_clean(hudi, ours, arguments)
    again = Table.open(theirs.location, options=options).services.clean.run()
    assert isinstance(again, Cleaned | NothingToDo)
    assert len(files(ours)) == len(files(theirs))
    assert_hudi_reads_the_same(hudi, ours)


def assert_same_bytes(table: Table) -> None:
    """Assert that decoding and encoding Hudi's clean plan and metadata keeps the records and the schemas."""
    requested, completed = content(table, State.REQUESTED), content(table, State.COMPLETED)
    plan = encode_clean_plan(decode_clean_plan(requested, base_path=table.location), base_path=table.location)
    # Hudi writes local paths with a scheme in clean plans and without one in rollback plans; lakehouse reads both.
    wanted = json.loads(json.dumps(read_record(requested, CLEANER_PLAN)).replace("file:/", "/"))
    assert read_record(plan, CLEANER_PLAN) == wanted
    assert schema_in(plan) == schema_in(requested)
    metadata = encode_clean_metadata(decode_clean_metadata(completed))
    assert read_record(metadata, CLEAN_METADATA) == read_record(completed, CLEAN_METADATA)
    assert schema_in(metadata) == schema_in(completed)


@pytest.mark.parametrize("started", [False, True], ids=["requested", "inflight"])
def test_hudi_and_lakehouse_execute_clean_plans_of_each_other(started: bool, hudi: Hudi, tmp_path: Path) -> None:
    options = POLICIES["commits"][1]
    table = table_with_history(tmp_path, "MERGE_ON_READ")
    ours, theirs = copied(table, "ours", options), copied(table, "theirs", options)
    planned = ours.services.clean.schedule()
    assert isinstance(planned, Instant)
    if started:
        ours.refresh().store.start(planned, content(ours, State.REQUESTED))
    run_hudi_clean(hudi, ours)
    assert newest_clean(ours).requested == planned.requested and newest_clean(ours).is_completed
    # Copy Hudi's plan to a table in which the plan is not executed yet.
    run_hudi_clean(hudi, theirs)
    clean, store = newest_clean(theirs), table.refresh().env.storage
    name = f".hoodie/timeline/{clean.requested}.clean"
    store.put(f"{name}.requested", content(theirs, State.REQUESTED))
    if started:
        store.put(f"{name}.inflight", b"")
    outcome = table.services.clean.run()
    assert isinstance(outcome, Cleaned) and outcome.instant.requested == clean.requested
    assert files(ours) == files(theirs) == files(table)
    for done in (ours, table):
        assert_hudi_reads_the_same(hudi, done)


def test_clean_keeps_savepoint_files_in_a_deleted_partition(hudi: Hudi, tmp_path: Path) -> None:
    # Hudi 1.2 ignores the savepoint and deletes the directory, because it has no active file group.
    table = table_with_history(tmp_path, "COPY_ON_WRITE")
    table.delete_partitions(["c"])
    for number in range(4):
        table.upsert(batch([row("k0", p="a", ts=20 + number)]))
    theirs = copied(table, "theirs")
    run_hudi_clean(hudi, theirs)
    assert "c" in plan_of(theirs).partitions_to_delete and not any(path.startswith("c/") for path in files(theirs))
    outcome = Table.open(table.location, options=POLICIES["commits"][1]).services.clean.run()
    assert isinstance(outcome, Cleaned) and "c" not in outcome.metadata.partitions
    (savepoint,) = table.savepoints()
    assert "k8" in {r["id"] for r in data_rows(table, ["id"], as_of=savepoint.requested)}
    with pytest.raises(UserError, match=f"cannot be read as of {savepoint.requested} any more"):
        data_rows(theirs, ["id"], as_of=savepoint.requested)


@pytest.mark.parametrize("kind", KINDS)
def test_hudi_and_hudi_rs_use_the_table_after_a_clean_of_lakehouse(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = table_with_history(tmp_path, kind, savepoint=False)
    outcome = Table.open(table.location, options=POLICIES["commits"][1]).services.clean.run()
    assert isinstance(outcome, Cleaned)
    now = assert_hudi_reads_the_same(hudi, table)
    if kind == "COPY_ON_WRITE":
        found = hudi_rs.read(table.location)
        assert canonical_rows(hudi_rs.like(found, now.schema), with_meta=True) == canonical_rows(now, with_meta=True)
    # A write of Hudi runs an automatic clean, which starts from the clean of lakehouse.
    for number in range(3):
        cleaning = HUDI_UPSERT | {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
        rows = batch([row("k0", p="a", ts=30 + number, v="theirs"), row("k5", p="c", ts=30 + number, v="theirs")])
        hudi.write(table.location, rows, cleaning)
    assert len(table.timeline.where(action=Action.CLEAN)) > 1
    assert {r["v"] for r in data_rows(table, ["id", "v"]) if r["id"] in ("k0", "k5")} == {"theirs"}
    assert_hudi_reads_the_same(hudi, table)
    last = Table.open(table.location, options={"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    assert isinstance(last, Cleaned | NothingToDo)
    assert_hudi_reads_the_same(hudi, table)


def test_clean_keeps_the_metadata_table_of_hudi_and_hudi_continues_it(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    for number in range(4):
        rows = batch([row(f"k{n}", p="ab"[n % 2], ts=number, v=f"v{number}") for n in range(4)])
        hudi.write(location, rows, BASE | PARTITIONED, mode="append" if number else "overwrite")
    table = Table.open(location, options={"hoodie.clean.commits.retained": "1"})
    listed = table.config.metadata_partitions
    outcome = table.services.clean.run()
    assert isinstance(outcome, Cleaned) and outcome.files == 4
    assert listed and Table.open(location).config.metadata_partitions == listed
    assert table.metadata.validate().ok
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(location, batch([row("k0", p="a", ts=9, v="theirs")]), BASE | PARTITIONED)
    assert table.metadata.validate().ok
    assert {r["id"]: r["v"] for r in data_rows(table, ["id", "v"])}["k0"] == "theirs"
    assert_hudi_reads_the_same(hudi, table)
