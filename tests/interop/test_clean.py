"""Apache Hudi and we clean the same tables: each chooses the same files, runs what the other planned, and goes on."""

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
from tests.interop.test_failures_and_upgrades import ON_OURS
from tests.interop.test_writes_to_hudi_tables import BASE, PARTITIONED
from tests.support import hudi_rs
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, data_rows, make_table, row

pytestmark = pytest.mark.jvm

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
NO_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
#: Arguments of Hudi's procedure, and the options of ours that say the same.
POLICIES = {
    "commits": ("retain_commits => 3", {"hoodie.clean.commits.retained": "3"}),
    "versions": (
        "clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 2",
        {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "2"},
    ),
}


def lived(directory: Path, kind: str, *, savepoint: bool = True, cdc: bool = False) -> Table:
    """Return a table with updates, an overwrite, and a savepoint or a partition that is deleted; compactions too."""
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


def twin(table: Table, name: str, options: dict[str, str] | None = None) -> Table:
    """Return a copy of the table."""
    copy = Path(table.location).with_name(name)
    shutil.copytree(table.location, copy)
    return Table.open(str(copy), options=options)


def hudi_cleans(hudi: Hudi, table: Table, arguments: str = POLICIES["commits"][0]) -> None:
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
def test_hudi_and_we_choose_the_same_files_and_tell_them_alike(
    kind: str, policy: str, hudi: Hudi, tmp_path: Path
) -> None:
    arguments, options = POLICIES[policy]
    kept = (kind, policy) in (("COPY_ON_WRITE", "versions"), ("MERGE_ON_READ", "commits"))
    theirs = lived(tmp_path, kind, savepoint=kept, cdc=kind == "COPY_ON_WRITE")
    ours = twin(theirs, "ours", options)
    hudi_cleans(hudi, theirs, arguments)
    outcome = ours.services.clean.run()
    assert isinstance(outcome, Cleaned)
    assert kept or outcome.metadata.partitions["c"].is_deleted
    assert files(ours) == files(theirs)
    plans = plan_of(ours), plan_of(theirs)
    assert [{p: set(names) for p, names in plan.files.items()} for plan in plans[:1]] == [
        {p: set(names) for p, names in plan.files.items()} for plan in plans[1:]
    ]
    assert replace(plans[0], files={}) == replace(plans[1], files={})
    told = [decode_clean_metadata(content(table, State.COMPLETED)) for table in (ours, theirs)]
    first, second = (replace(one, start_time="", seconds=0, partitions={}) for one in told)
    assert first == second
    parts = [
        {name: (p.policy, set(p.deleted), p.failed, p.is_deleted) for name, p in one.partitions.items()} for one in told
    ]
    assert parts[0] == parts[1]
    assert_same_bytes(theirs)
    assert data_rows(ours, ["id", "v"]) == data_rows(theirs, ["id", "v"])
    # Once more, by what the other side's clean said of itself.
    for number in range(3):
        for table in (ours, theirs):
            table.upsert(batch([row("k0", p="a", ts=20 + number, v=f"more {number}")]))
    hudi_cleans(hudi, ours, arguments)
    again = Table.open(theirs.location, options=options).services.clean.run()
    assert isinstance(again, Cleaned | NothingToDo)
    assert len(files(ours)) == len(files(theirs))
    assert_hudi_reads_the_same(hudi, ours)


def assert_same_bytes(table: Table) -> None:
    """Assert that what Hudi wrote is, decoded and encoded by us, the same record under the same schema."""
    requested, completed = content(table, State.REQUESTED), content(table, State.COMPLETED)
    plan = encode_clean_plan(decode_clean_plan(requested, base_path=table.location), base_path=table.location)
    # Its local paths have a scheme here, in rollback plans they have none; both are read.
    wanted = json.loads(json.dumps(read_record(requested, CLEANER_PLAN)).replace("file:/", "/"))
    assert read_record(plan, CLEANER_PLAN) == wanted
    assert schema_in(plan) == schema_in(requested)
    metadata = encode_clean_metadata(decode_clean_metadata(completed))
    assert read_record(metadata, CLEAN_METADATA) == read_record(completed, CLEAN_METADATA)
    assert schema_in(metadata) == schema_in(completed)


@pytest.mark.parametrize("started", [False, True], ids=["requested", "inflight"])
def test_hudi_runs_our_plan_and_we_run_hudis(started: bool, hudi: Hudi, tmp_path: Path) -> None:
    options = POLICIES["commits"][1]
    table = lived(tmp_path, "MERGE_ON_READ")
    ours, theirs = twin(table, "ours", options), twin(table, "theirs", options)
    planned = ours.services.clean.schedule()
    assert isinstance(planned, Instant)
    if started:
        ours.refresh().store.start(planned, content(ours, State.REQUESTED))
    hudi_cleans(hudi, ours)
    assert newest_clean(ours).requested == planned.requested and newest_clean(ours).is_completed
    # The plan of Hudi, put where nobody has begun to carry it out.
    hudi_cleans(hudi, theirs)
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


def test_a_savepoint_keeps_its_files_in_a_partition_that_was_deleted(hudi: Hudi, tmp_path: Path) -> None:
    # Hudi 1.2 deletes the directory, savepoint or not, since no group in it is alive.
    table = lived(tmp_path, "COPY_ON_WRITE")
    table.delete_partitions(["c"])
    for number in range(4):
        table.upsert(batch([row("k0", p="a", ts=20 + number)]))
    theirs = twin(table, "theirs")
    hudi_cleans(hudi, theirs)
    assert "c" in plan_of(theirs).partitions_to_delete and not any(path.startswith("c/") for path in files(theirs))
    outcome = Table.open(table.location, options=POLICIES["commits"][1]).services.clean.run()
    assert isinstance(outcome, Cleaned) and "c" not in outcome.metadata.partitions
    (savepoint,) = table.savepoints()
    assert "k8" in {r["id"] for r in data_rows(table, ["id"], as_of=savepoint.requested)}
    with pytest.raises(UserError, match=f"cannot be read as of {savepoint.requested} any more"):
        data_rows(theirs, ["id"], as_of=savepoint.requested)


@pytest.mark.parametrize("kind", KINDS)
def test_hudi_and_hudi_rs_go_on_after_our_clean(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = lived(tmp_path, kind, savepoint=False)
    outcome = Table.open(table.location, options=POLICIES["commits"][1]).services.clean.run()
    assert isinstance(outcome, Cleaned)
    now = assert_hudi_reads_the_same(hudi, table)
    if kind == "COPY_ON_WRITE":
        found = hudi_rs.read(table.location)
        assert canonical_rows(hudi_rs.like(found, now.schema), with_meta=True) == canonical_rows(now, with_meta=True)
    # A write of theirs cleans by itself, going on from where our clean left off.
    for number in range(3):
        cleaning = ON_OURS | {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
        rows = batch([row("k0", p="a", ts=30 + number, v="theirs"), row("k5", p="c", ts=30 + number, v="theirs")])
        hudi.write(table.location, rows, cleaning)
    assert len(table.timeline.where(action=Action.CLEAN)) > 1
    assert {r["v"] for r in data_rows(table, ["id", "v"]) if r["id"] in ("k0", "k5")} == {"theirs"}
    assert_hudi_reads_the_same(hudi, table)
    last = Table.open(table.location, options={"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    assert isinstance(last, Cleaned | NothingToDo)
    assert_hudi_reads_the_same(hudi, table)


def test_a_table_with_a_metadata_table_is_cleaned_and_goes_on(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    for number in range(4):
        rows = batch([row(f"k{n}", p="ab"[n % 2], ts=number, v=f"v{number}") for n in range(4)])
        hudi.write(location, rows, BASE | PARTITIONED, mode="append" if number else "overwrite")
    table = Table.open(location, options={"hoodie.clean.commits.retained": "1"})
    assert table.config.metadata_partitions
    outcome = table.services.clean.run()
    assert isinstance(outcome, Cleaned) and outcome.files == 4
    # It lists the files that are gone, and Hudi makes it anew.
    assert not Table.open(location).config.metadata_partitions
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(location, batch([row("k0", p="a", ts=9, v="theirs")]), BASE | PARTITIONED)
    assert Table.open(location).config.metadata_partitions
    assert {r["id"]: r["v"] for r in data_rows(table, ["id", "v"])}["k0"] == "theirs"
    assert_hudi_reads_the_same(hudi, table)
