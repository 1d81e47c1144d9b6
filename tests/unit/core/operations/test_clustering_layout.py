"""Clustering layouts let queries on their columns skip files; clusterings and concurrent writes conflict."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.files.base.clustering_writer import ClusteringContext, cluster_group
from lakehouse.core.format.timeline.clustering import decode_clustering_plan, encode_clustering_plan
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.services import clustering
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError, UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteringGroup
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State
from tests.support.tables import Shape, batch, check_storage, data_rows, make_env, make_table, row

SORT, LAYOUT = "hoodie.clustering.plan.strategy.sort.columns", "hoodie.layout.optimize.strategy"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
ROWS, FILES = 20_000, 16


def points(options: Mapping[str, str]) -> Table:
    """Return a table of points in random order, in the same number of files as a clustering writes."""
    env, random = make_env(), np.random.default_rng(7)
    made = Table.create(
        env.storage.root, name="points", record_key=["id"], env=env, options={"hoodie.parquet.small.file.limit": "0"}
    )
    for part in range(FILES):
        numbers = np.arange(part, ROWS, FILES)
        x, y = random.integers(0, 10_000, (2, len(numbers)))
        made.bulk_insert(pa.table({"id": [f"{n:05}" for n in numbers], "x": x, "y": y.astype("U")}))
    size = sum(file.size_bytes for file in made.scan().plan().plan.files)
    return Table.open(made.location, env=env, options={TARGET: str(size // FILES + 1), **options})


def opened(table: Table, where: str) -> int:
    return len(table.scan(where=where).plan().plan.files)


def test_space_filling_curves_skip_files_for_conditions_on_each_column() -> None:
    by_x, by_y = "x BETWEEN 2000 AND 2500", "y BETWEEN '2000' AND '2500'"
    found: dict[str, tuple[int, int, int]] = {}
    for layout in ("none", "linear", "z-order", "hilbert"):
        table = points({SORT: "x,y", LAYOUT: layout} if layout != "none" else {})
        before = {where: table.scan(["id"], where).count() for where in (by_x, by_y)}
        if layout != "none":
            outcome = table.services.clustering.run(force=True)
            assert isinstance(outcome, Committed) and len(outcome.metadata.stats) == FILES
        assert {where: table.scan(["id"], where).count() for where in before} == before
        found[layout] = opened(table, by_x), opened(table, by_y), opened(table, f"{by_x} AND {by_y}")
    assert found["none"] == (FILES, FILES, FILES)
    assert found["linear"][0] <= 2 and found["linear"][1] == FILES
    for curve in ("z-order", "hilbert"):
        assert max(found[curve]) <= FILES // 2, found
        assert found[curve][2] <= 4, found


def test_clustering_with_a_small_budget_spills_and_sorts_all_rows() -> None:
    ends = []
    for budget in (1 << 19, 1 << 28):
        table = points({SORT: "y,x", "lakehouse.write.memory.budget": str(budget)})
        table.services.clustering.run(force=True)
        files = [pa.Table.from_batches([rows]) for rows in table.scan(["y", "x"]).to_batches()]
        ends.append(pa.concat_tables(sorted(files, key=lambda rows: tuple(rows.slice(0, 1).to_pylist()[0].values()))))
    assert ends[0].num_rows == ROWS and ends[0].equals(ends[1])
    assert ends[0].equals(ends[0].sort_by([("y", "ascending"), ("x", "ascending")]))


def small_files(**shape: object) -> Table:
    """Return a table of three files with two rows each, in one partition."""
    table = make_table(Shape(fills_small_files=False, **shape))  # type: ignore[arg-type]
    for number in range(3):
        table.insert(batch([row(f"k{number}{i}", v="old") for i in range(2)]))
    return table


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clustering_leaves_out_file_groups_that_an_upsert_changed(kind: str) -> None:
    table = small_files(type=kind)
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    updated = table.upsert(batch([row("k00", ts=2, v="new")]))
    assert isinstance(updated, Committed)
    (changed,) = {stat.file_id for stat in updated.metadata.stats}
    outcome = table.services.clustering.run()
    assert isinstance(outcome, Committed), outcome
    assert outcome.instant.requested == planned.requested and outcome.dropped == ()
    (reason,) = outcome.left_out
    assert f"left out 1 file group for writes: {updated.instant.requested} changed file group {changed}" in reason
    assert changed not in outcome.metadata.replaced["a"] and len(outcome.metadata.replaced["a"]) == 2
    assert not any(instant.action is Action.CLUSTERING and not instant.is_completed for instant in table.timeline)
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"k00": "new", "k01": "old"}.items()
    check_storage(table)
    again = table.services.clustering.run(force=True)
    assert isinstance(again, Committed) and changed in again.metadata.replaced["a"], "no plan holds it any more"
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"k00": "new", "k01": "old"}.items()


@pytest.mark.parametrize("options", [{}, {"hoodie.metadata.record.index.enable": "true"}])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clustering_leaves_out_files_of_groups_that_an_upsert_changes_meanwhile(
    kind: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_files(type=kind, options=options)
    for number in range(2):
        table.insert(batch([row(f"b{number}", p="b", v="old")]))
    updated, only_one = list[object](), Lock()

    def cluster(context: ClusteringContext, attempt: Attempt, group: ClusteringGroup) -> list[WriteStat]:
        with only_one:
            if not updated:
                updated.append(table.upsert(batch([row("b0", ts=2, v="new", p="b")])))
        return cluster_group(context, attempt, group)

    monkeypatch.setattr(clustering, "cluster_group", cluster)
    outcome = table.services.clustering.run(force=True)
    assert isinstance(updated[0], Committed) and isinstance(outcome, Committed), outcome
    assert set(outcome.metadata.replaced) == {stat.partition for stat in outcome.metadata.stats} == {"a"}
    assert "left out 2 file groups" in outcome.left_out[0]
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"b0": "new", "b1": "old"}.items()
    check_storage(table)
    table.upsert(batch([row("k00", ts=3, v="last"), row("b1", ts=3, v="last", p="b")]))
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"k00": "last", "b1": "last", "k01": "old"}.items()


def test_plan_that_another_executor_began_is_dropped_whole_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    table = small_files()

    def crash(*arguments: object) -> list[WriteStat]:
        raise RetryableError("the executor crashed")

    with monkeypatch.context() as patched:
        patched.setattr(clustering, "cluster_group", crash)
        with pytest.raises(RetryableError, match="crashed"):
            table.services.clustering.run(force=True)
    (planned,) = table.timeline.where(action=Action.CLUSTERING, pending=True)
    table.upsert(batch([row("k00", ts=2, v="new")]))
    outcome = table.services.clustering.run(instant=planned.requested)
    assert isinstance(outcome, NothingToDo) and "was dropped" in outcome.reason
    assert table.timeline.find(planned.requested) is None


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_updates_of_planned_file_groups_are_refused_with_the_strategy_reject(kind: str) -> None:
    table = small_files(type=kind, options={"hoodie.clustering.updates.strategy": "reject"})
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    with pytest.raises(RetryableError, match=f"being clustered by {planned.requested}"):
        table.upsert(batch([row("k00", ts=2, v="new")]))
    table.insert(batch([row("n", v="inserted")]))
    with pytest.raises(RetryableError, match="is about to cluster"):
        table.insert_overwrite(batch([row("o", v="overwritten")]))
    assert isinstance(table.services.clustering.run(), Committed)
    table.upsert(batch([row("k00", ts=2, v="new")]))
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"k00": "new", "k01": "old", "n": "inserted"}.items()
    check_storage(table)


@pytest.mark.parametrize("verb", ["upsert", "insert_overwrite", "delete_partitions"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clustering_leaves_out_what_a_conflicting_allowed_write_changed(kind: str, verb: str) -> None:
    table = small_files(type=kind, options={"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"})
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    if verb == "delete_partitions":
        table.delete_partitions(["a"])
    else:
        getattr(table, verb)(batch([row("k00", ts=2, v="new")]))
    rows = data_rows(table)
    outcome = table.services.clustering.run(instant=planned.requested)
    if verb == "upsert":
        assert isinstance(outcome, Committed) and len(outcome.metadata.replaced["a"]) == 2
    else:
        assert isinstance(outcome, NothingToDo)
        assert table.timeline.find(planned.requested) is None, "the plan is removed from the timeline"
    assert sorted(data_rows(table), key=str) == sorted(rows, key=str)
    check_storage(table)


def test_writes_to_file_groups_of_a_hudi_clustering_plan_are_refused() -> None:
    table = small_files(options={"hoodie.clustering.updates.strategy": "give_way"})
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    loaded = table.refresh()
    plan = decode_clustering_plan(loaded.store.read(planned, State.REQUESTED) or b"")
    assert plan is not None
    path = f".hoodie/timeline/{planned.requested}.clustering.requested"
    as_hudi = type(plan)(groups=plan.groups, params=plan.params)
    loaded.env.storage.put(path, encode_clustering_plan(as_hudi, base_path=table.location))
    with pytest.raises(RetryableError, match="being clustered"):
        table.upsert(batch([row("k00", ts=2, v="new")]))
    other = type(plan)(groups=plan.groups, strategy="org.apache.hudi.SomeOtherStrategy")
    loaded.env.storage.put(path, encode_clustering_plan(other, base_path=table.location))
    with pytest.raises(UnsupportedError, match="SomeOtherStrategy"):
        table.services.clustering.run()
    loaded.env.storage.put(path, encode_clustering_plan(as_hudi, base_path=table.location))
    assert isinstance(table.services.clustering.run(), Committed)
    check_storage(table)


def test_clustering_has_no_changes() -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="t", record_key=["id"], cdc="DATA_BEFORE_AFTER", env=env)
    for number in range(3):
        table.bulk_insert(pa.table({"id": [f"k{number}"], "v": [number]}))
    first, last = (table.commits()[number][0] for number in (0, -1))
    assert isinstance(table.services.clustering.run(force=True), Committed)
    table.upsert(pa.table({"id": ["k1"], "v": [9]}))
    changes = table.incremental(first.completion, format="cdc").to_arrow().to_pylist()
    assert [(change["op"], change["before"], change["after"]) for change in changes] == [
        ("i", None, {"id": "k1", "v": 1}),
        ("i", None, {"id": "k2", "v": 2}),
        ("u", {"id": "k1", "v": 1}, {"id": "k1", "v": 9}),
    ]
    (clustered,) = (i for i, metadata in table.commits() if metadata.operation == "CLUSTER")
    assert table.incremental(last.completion, clustered.completion, format="cdc").count() == 0
    assert table.incremental(last.completion, clustered.completion).count() == 0


def test_clustering_keeps_a_column_added_after_its_plan() -> None:
    table = small_files()
    planned = table.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    wider = batch([row("n", p="z", v="new")])
    table.insert(wider.append_column("extra", pa.array(["more"])))
    table.services.clustering.run()
    assert table.schema.names[-1] == "extra"
    assert {r["id"]: r["extra"] for r in data_rows(table)}.items() >= {"n": "more", "k00": None}.items()


def test_clustering_is_refused_during_a_write_without_recorded_file_groups() -> None:
    table = small_files()
    loaded = table.refresh()
    heartbeat = Heartbeat(loaded.env, table.services.policies.transaction)
    write = loaded.store.request(loaded.timeline, Action.COMMIT, b"", announce=heartbeat.start)
    try:
        assert isinstance(table.services.clustering.run(), NothingToDo), "no clustering is due"
        with pytest.raises(RetryableError, match=f"{write.requested} is pending and has not recorded"):
            table.services.clustering.run(force=True)
        assert not table.timeline.where(action=Action.CLUSTERING), "no plan blocks other writes meanwhile"
        planned = table.services.clustering.schedule(force=True)
        assert isinstance(planned, Instant)
        with pytest.raises(RetryableError, match=f"{write.requested} is pending and has not recorded"):
            table.services.clustering.run(instant=planned.requested)
        held = table.services.table.timeline
        stat = WriteStat(partition="a", file_id=load_slices(table.refresh())[0].file_id, path="", prev_commit="1")
        profile = CommitMetadata(operation="UPSERT", stats=(stat,))
        loaded.store.start(write, table_layout(9).encode_inflight(profile))
        outcome = table.services.clustering.run(instant=planned.requested)
        assert isinstance(outcome, NothingToDo) and f"{write.requested}, which is pending" in outcome.reason
        assert held.find(planned.requested) and table.timeline.find(planned.requested) is None
        rest = table.services.clustering.plan(force=True)
        assert rest is not None and stat.file_id not in {piece.file_id for piece in rest.slices}
    finally:
        heartbeat.discard()
    assert isinstance(table.services.clustering.run(force=True), Committed), "an expired write does not conflict"
