"""Clustering: Hudi and lakehouse execute plans of each other and read the clustered tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.base import row_group_copy
from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.instant import Action, Instant, State
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.support import hudi_rs
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, SCHEMA, Shape, batch, check_storage, make_env, make_table, row

pytestmark = pytest.mark.jvm

SORT, LAYOUT = "hoodie.clustering.plan.strategy.sort.columns", "hoodie.layout.optimize.strategy"
NO_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
ONE_CYCLE = 3


def call(hudi: Hudi, table: Table, arguments: str) -> list[str]:
    """Run Hudi's clustering procedure and return the states of its plans."""
    text = f"CALL run_clustering(path => '{table.location}', {arguments})"
    states: list[str] = hudi.query(text, **NO_METADATA_TABLE).column("state").to_pylist()
    return states


def clusterings(table: Table) -> list[Instant]:
    return list(table.timeline.where(action=Action.CLUSTERING, pending=True))


def filled(kind: str, directory: Path, **options: str) -> Table:
    """Return a table with small files in two partitions; a merge-on-read table also has log files."""
    shape = Shape(type=kind, fills_small_files=False, options=options)
    table = make_table(shape, env=make_env(str(directory / "table")))
    for part in range(ONE_CYCLE):
        rows = [row(f"k{n}", p="ab"[n % 2], v=f"{(7 * n) % 12:02}", ts=1) for n in range(12) if n % ONE_CYCLE == part]
        table.insert(batch(rows))
    table.upsert(batch([row("k0", v="updated", ts=2), row("k2", ts=2, **{DELETED: True})]))
    return table


def plan_of(table: Table, instant: Instant) -> ClusteringPlan:
    plan = decode_clustering_plan(table.refresh().store.read(instant, State.REQUESTED) or b"")
    assert plan is not None
    return plan


def test_hudi_reads_a_clustering_that_left_out_changed_file_groups_and_plans_these(hudi: Hudi, tmp_path: Path) -> None:
    table = filled("MERGE_ON_READ", tmp_path)
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    held = {(part, file_id) for part, ids in plan_of(table, planned).replaced.items() for file_id in ids}
    table.upsert(batch([row("k4", v="later", ts=3)]))
    outcome = table.services.clustering.run(instant=planned.requested)
    assert isinstance(outcome, Committed) and outcome.left_out
    replaced = {(part, file_id) for part, ids in outcome.metadata.replaced.items() for file_id in ids}
    assert len(held - replaced) == 1 and replaced < held
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert_hudi_reads_the_same(hudi, table, past=True)
    assert clusterings(table) == []
    call(hudi, table, "op => 'schedule'")
    (theirs,) = clusterings(table)
    again = {(part, file_id) for part, ids in plan_of(table, theirs).replaced.items() for file_id in ids}
    assert held - replaced <= again, "no plan holds the file group any more"


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_and_lakehouse_execute_clustering_plans_of_each_other(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = filled(kind, tmp_path, **{SORT: "v,ts"})
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    before = table.scan().to_arrow()
    assert_same(before, hudi_rs.read(table.location))
    assert call(hudi, table, f"op => 'execute', instants => '{planned.requested}'") == ["COMPLETED"]
    assert clusterings(table) == []
    assert_same(before, table.scan().to_arrow())
    assert table.commits()[-1][1].replaced == plan_of(table, planned).replaced
    assert_hudi_reads_the_same(hudi, table, past=True)
    values = table.scan(["v"], "p = 'a'").to_arrow().column("v").to_pylist()
    assert values == sorted(values), "Hudi sorted by the columns of lakehouse's plan"

    for number in range(ONE_CYCLE):
        table.insert(batch([row(f"n{number}", v=f"{9 - number}"), row(f"m{number}", p="c", v=f"{9 - number}")]))
    call(hudi, table, "op => 'schedule', order => 'v'")
    (theirs,) = clusterings(table)
    plan = plan_of(table, theirs)
    assert plan.params[SORT] == "v"
    before = table.scan().to_arrow()
    done = table.services.clustering.run()
    assert isinstance(done, Committed) and done.instant.requested == theirs.requested
    assert done.metadata.replaced == plan.replaced
    assert_same(before, table.scan().to_arrow())
    assert_hudi_reads_the_same(hudi, table, past=True)
    assert_same(before, hudi_rs.read(table.location))
    table.upsert(batch([row("m0", p="c", v="after", ts=9), row("k3", p="b", v="after", ts=9)]))
    assert_hudi_reads_the_same(hudi, table)


def test_hudi_writes_after_lakehouse_clustered_along_a_curve(hudi: Hudi, tmp_path: Path) -> None:
    table = filled("COPY_ON_WRITE", tmp_path, **{SORT: "v,ts,id", LAYOUT: "hilbert"})
    assert isinstance(table.services.clustering.run(force=True), Committed)
    check_storage(table)
    assert_hudi_reads_the_same(hudi, table, past=True)
    options = {
        "hoodie.table.name": "events",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.metadata.enable": "false",
    }
    hudi.write(table.location, batch([row("k3", p="b", v="theirs", ts=9), row("new", v="theirs")]), options)
    found = {r["id"]: r["v"] for r in table.scan(["id", "v"]).to_arrow().to_pylist()}
    assert found["k3"] == found["new"] == "theirs"
    assert_hudi_reads_the_same(hudi, table)
    assert isinstance(table.services.clustering.run(force=True), Committed | NothingToDo)
    assert_hudi_reads_the_same(hudi, table, past=True)


@pytest.mark.parametrize("made_by", ["us", "hudi"])
def test_hudi_finds_keys_in_files_with_copied_row_groups(
    made_by: str, hudi: Hudi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_group_copy, "MIN_GROUP_BYTES", 0)
    options = {
        "hoodie.table.name": "events",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "p",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.operation": "bulk_insert",
        "hoodie.clean.automatic": "false",
        "hoodie.metadata.enable": "false",
    }
    location = str(tmp_path / "table")
    if made_by == "us":
        # No index type is stored in the table, because Hudi would use it, and only its bloom index reads the filters.
        Table.create(location, name="events", record_key=["id"], partition_by=["p"], ordering="ts", schema=SCHEMA)
    for part in range(ONE_CYCLE):
        some = batch([row(f"k{n}", p="ab"[n % 2], v=str(n)) for n in range(part, 12, ONE_CYCLE)])
        if made_by == "us":
            Table.open(location).bulk_insert(some)
        else:
            hudi.write(location, some, options, mode="append" if part else "overwrite")
    table = Table.open(location)
    before = table.scan().to_arrow()
    outcome = table.services.clustering.run(force=True)
    assert isinstance(outcome, Committed)
    storage = table.refresh().env.storage
    groups = [pq.ParquetFile(storage.open_input(stat.path)).num_row_groups for stat in outcome.metadata.stats]
    assert max(groups) > 1, "the file has the row groups of its input files"
    assert_same(before, table.scan().to_arrow())
    assert_hudi_reads_the_same(hudi, table, past=True)
    assert_same(before, hudi_rs.read(table.location))
    upsert = {"hoodie.datasource.write.operation": "upsert", "hoodie.index.type": "BLOOM"}
    rows = batch(
        [row("k3", p="b", v="theirs", ts=9), row("k4", p="a", v="theirs", ts=9), row("new", p="a", v="theirs")]
    )
    hudi.write(table.location, rows, options | upsert)
    found = {r["id"]: r["v"] for r in table.scan(["id", "v"]).to_arrow().to_pylist()}
    assert len(found) == table.scan().count() == len(before) + 1
    assert found["k3"] == found["k4"] == found["new"] == "theirs"
    assert_hudi_reads_the_same(hudi, table)
