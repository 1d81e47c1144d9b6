"""Invariants of clustering: rows and old versions stay the same, outputs are sorted and planning is repeatable."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Instant, State
from tests.support.merged_run import meeting_rows
from tests.support.model import Model, Row, Verb, apply_verb, shapes
from tests.support.naive import counted
from tests.support.tables import SCHEMA, Shape, check_storage, examples, make_table

#: All columns except the file name. A clustering keeps the commit time and sequence number of each row.
KEPT = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path", *SCHEMA.names)
SORT, LAYOUT = "hoodie.clustering.plan.strategy.sort.columns", "hoodie.layout.optimize.strategy"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "as they come": {},
    "one column": {SORT: "v"},
    "columns": {SORT: "ts,v"},
    "z-order": {SORT: "v,ts,amount", LAYOUT: "z-order"},
    "hilbert": {SORT: "amount,v", LAYOUT: "hilbert"},
}
#: Table shapes whose index does not fix the file group of a key, so that clustering is allowed.
clustered_shapes = st.sampled_from(["COPY_ON_WRITE", "MERGE_ON_READ"]).flatmap(
    lambda kind: st.sampled_from(["SIMPLE", "GLOBAL_SIMPLE"]).flatmap(lambda index: shapes(type=kind, index=index))
)
batches = st.lists(st.lists(meeting_rows(), min_size=4, max_size=12), min_size=2, max_size=4)


def filled(shape: Shape, rows: list[list[Row]], options: Mapping[str, str]) -> Table:
    """Return a table with one commit each for an insert, upserts, another insert and a delete."""
    table, model = make_table(dataclasses.replace(shape, options={**shape.options, **options})), Model(shape)
    for number, some in enumerate(rows):
        name = "insert" if number in (0, len(rows) - 1) else "upsert"
        apply_verb(table, model, Verb(name=name, rows=tuple(some), way=number), unique=True)
    apply_verb(table, model, Verb(name="delete", rows=tuple(rows[0][:2])), unique=True)
    return table


def kept(table: Table, **scan: object) -> Counter[tuple[object, ...]]:
    return counted(table.scan(list(KEPT), **scan).to_arrow().to_pylist(), KEPT)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(6)
@given(shape=clustered_shapes, rows=batches)
def test_clustering_keeps_rows_old_versions_and_incremental_reads(
    layout: str, shape: Shape, rows: list[list[Row]]
) -> None:
    table = filled(shape, rows, LAYOUTS[layout])
    before, commits = kept(table), table.commits()
    past = {instant.requested: kept(table, as_of=instant.requested) for instant, _ in commits}
    changed = {
        instant.requested: counted(table.incremental(begin.completion, instant.completion).to_arrow().to_pylist(), KEPT)
        for (begin, _), (instant, _) in pairwise(commits)
    }
    outcome = table.services.clustering.run(force=True)
    assert kept(table) == before
    check_storage(table, unique=False)
    if isinstance(outcome, NothingToDo):
        return
    assert {requested: kept(table, as_of=requested) for requested in past} == past
    assert kept(table, as_of=outcome.instant.requested) == before
    for (begin, _), (instant, _) in pairwise(commits):
        found = table.incremental(begin.completion, instant.completion).to_arrow().to_pylist()
        assert counted(found, KEPT) == changed[instant.requested]
    assert table.incremental(commits[-1][0].completion).count() == 0, (
        "an incremental read returns rows of the clustering"
    )
    assert counted(table.incremental("earliest").to_arrow().to_pylist(), KEPT) == before
    assert isinstance(table.services.clustering.run(force=True), NothingToDo), "a second run clusters again"


@examples(15)
@given(shape=clustered_shapes, rows=batches, layout=st.sampled_from(sorted(LAYOUTS)), outputs=st.integers(1, 3))
def test_clustering_writes_at_most_the_planned_files_with_sorted_rows(
    shape: Shape, rows: list[list[Row]], layout: str, outputs: int
) -> None:
    table = filled(shape, rows, LAYOUTS[layout] | {TARGET: str(40_000 // outputs)})
    proposed = table.services.clustering.plan(force=True)
    outcome = table.services.clustering.run(force=True)
    if isinstance(proposed, NothingToDo):
        assert isinstance(outcome, NothingToDo)
        return
    assert isinstance(outcome, Committed)
    assert outcome.metadata.replaced == proposed.replaced
    written: Counter[str] = Counter(stat.partition for stat in outcome.metadata.stats)
    planned: Counter[str] = Counter()
    for group in proposed.groups:
        planned[group.partition] += group.outputs
    assert all(count <= planned[partition] for partition, count in written.items())
    columns = LAYOUTS[layout].get(SORT, "").split(",")
    if LAYOUT in LAYOUTS[layout] or columns == [""]:
        return
    storage = table.refresh().env.storage
    for stat in outcome.metadata.stats:
        stored = pq.read_table(storage.open_input(stat.path), columns=columns)
        keys = [(name, "ascending", "at_start") for name in columns]
        order = pc.sort_indices(stored, sort_keys=keys)
        assert order.equals(pa.array(range(stored.num_rows), pa.uint64()))


@examples(15)
@given(shape=clustered_shapes, rows=batches, layout=st.sampled_from(sorted(LAYOUTS)))
def test_clustering_plan_is_repeatable_and_equals_the_scheduled_plan(
    shape: Shape, rows: list[list[Row]], layout: str
) -> None:
    table = filled(shape, rows, LAYOUTS[layout])
    proposed = table.services.clustering.plan(force=True)
    assert table.services.clustering.plan(force=True) == proposed
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant) != isinstance(proposed, NothingToDo)
    if isinstance(planned, Instant):
        data = table.refresh().store.read(planned, State.REQUESTED)
        stored = decode_clustering_plan(data or b"")
        assert stored is not None and stored.groups == proposed.groups  # type: ignore[union-attr]
        assert not isinstance(table.services.clustering.schedule(force=True), Instant), (
            "a pending plan holds its file groups"
        )
        assert table.services.clustering.due().pending == (planned.requested,)
        current = {(item.partition, item.file_id) for item in load_slices(table.refresh())}
        assert {(item.partition, item.file_id) for item in stored.slices} <= current
