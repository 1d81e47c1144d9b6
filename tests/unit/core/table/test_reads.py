"""Reads by the public API: snapshots, time travel, incremental reads, conditions, commit metadata."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.read.queries import instant_text
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import SCHEMA, Shape, batch, data_rows, make_env, make_table, row


@pytest.fixture
def history() -> tuple[Table, list[Committed]]:
    """Three commits: two rows, an update with an insert, an overwrite of partition b."""
    table = make_table(Shape(hive_style=True))
    steps = [
        table.upsert(batch([row("k1", v="one"), row("k2", p="b", v="two")]), commit_metadata={"source": "first"}),
        table.upsert(batch([row("k1", v="new", ts=2), row("k3", p="b")])),
        table.insert_overwrite(batch([row("k4", p="b")]), commit_metadata={"source": "third"}),
    ]
    return table, steps


def ids(rows: pa.Table) -> list[str]:
    """Return the keys of the rows."""
    return sorted(rows.column("id").to_pylist())


def test_snapshot_has_meta_columns_and_data_columns(history: tuple[Table, list[Committed]]) -> None:
    table, steps = history
    rows = table.scan().to_arrow()
    assert rows.column_names == [*META_COLUMNS, *SCHEMA.names]
    assert ids(rows) == ["k1", "k4"]
    newest = rows.filter(pa.compute.equal(rows["id"], "k4")).to_pylist()[0]
    assert newest["_hoodie_commit_time"] == steps[2].instant.requested
    assert newest["_hoodie_record_key"] == "k4"
    assert newest["_hoodie_partition_path"] == "p=b"


def test_time_travel_reads_every_earlier_commit(history: tuple[Table, list[Committed]]) -> None:
    table, steps = history
    first, second, third = (step.instant.requested for step in steps)
    assert ids(table.scan(as_of=first).to_arrow()) == ["k1", "k2"]
    assert data_rows(table, ["id", "v"], as_of=second)[0] == {"id": "k1", "v": "new"}
    assert ids(table.scan(as_of=second).to_arrow()) == ["k1", "k2", "k3"]
    assert ids(table.scan(as_of=third).to_arrow()) == ["k1", "k4"]
    with pytest.raises(UserError, match=f"before the first commit of the table, {first}; the last commit is {third}"):
        table.scan(as_of="2001-01-01").to_arrow()
    assert ids(table.scan(as_of="2999-01-01 00:00:00").to_arrow()) == ["k1", "k4"]


def test_incremental_read_returns_rows_between_completion_times(history: tuple[Table, list[Committed]]) -> None:
    table, steps = history
    first, second, third = (step.instant.completion for step in steps)
    assert ids(table.incremental(first).to_arrow()) == ["k1", "k4"]
    assert ids(table.incremental(first, second).to_arrow()) == ["k1", "k3"]
    assert ids(table.incremental("earliest", first).to_arrow()) == ["k1", "k2"]
    assert ids(table.incremental("earliest").to_arrow()) == ["k1", "k4"]
    assert ids(table.incremental().to_arrow()) == ["k4"]
    assert ids(table.incremental(third).to_arrow()) == []
    assert ids(table.incremental(first, columns=["id"], where="p = 'b'").to_arrow()) == ["k4"]


def test_incremental_read_returns_only_the_newest_version_of_a_row(history: tuple[Table, list[Committed]]) -> None:
    table, steps = history
    rows = table.incremental(steps[0].instant.completion).to_arrow()
    assert ids(rows) == ["k1", "k4"]
    assert data_rows(table, ["v"], where="id = 'k1'") == [{"v": "new"}]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("20260131", None),
        ("20260131100000", "20260131100000"),
        ("20260131100000123", "20260131100000123"),
        ("2026-01-31", "20260131000000000"),
        ("2026-01-31 10:11", "20260131101100000"),
        ("2026-01-31T10:11:12Z", "20260131101112000"),
        ("2026-01-31 10:11:12.5", "20260131101112500"),
        ("2026-01-31 10:11:12.123456+00:00", "20260131101112123"),
        ("yesterday", None),
        ("2026-01-31T10:00:00+02:00", None),
    ],
)
def test_instant_text_accepts_instants_and_iso_times_in_utc(text: str, instant: str | None) -> None:
    if instant is None:
        with pytest.raises(UserError, match="is not a time"):
            instant_text(text)
    else:
        assert instant_text(text) == instant


def test_condition_filters_rows_and_prunes_partitions(history: tuple[Table, list[Committed]]) -> None:
    table, _ = history
    scan = table.scan(["id"], where="p = 'b'")
    assert scan.to_arrow().to_pylist() == [{"id": "k4"}]
    # The other partition is not even listed.
    assert (len(scan.plan().plan.files), scan.plan().plan.skipped) == (1, 0)
    assert table.scan(where="ts >= 2 AND v LIKE 'n%'").count() == 1


def test_column_ranges_prune_files_of_a_partition() -> None:
    table = make_table(Shape(rows_per_file=2, fills_small_files=False))
    for start in (0, 10, 20):
        table.upsert(batch(row(f"k{n}", ts=n) for n in (start, start + 1)))
    scan = table.scan(["id"], where="ts BETWEEN 10 AND 15")
    assert (len(scan.plan().plan.files), scan.plan().plan.skipped) == (1, 2)
    assert ids(scan.to_arrow()) == ["k10", "k11"]
    assert len(table.scan(where="id = 'k20'").plan().plan.files) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"columns": ["nope"]}, "'nope' is not in the table; columns: _hoodie_commit_time"),
        ({"where": "idd = 1"}, "'idd' is not in the table. Did you mean 'id'"),
        ({"where": "id ="}, "ends too early"),
        ({"as_of": "soon"}, "'soon' is not a time"),
    ],
)
def test_impossible_read_is_refused_with_its_cause(
    history: tuple[Table, list[Committed]], call: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        history[0].scan(**call).to_arrow()


def test_columns_have_the_requested_order_and_conditions_may_use_others(
    history: tuple[Table, list[Committed]],
) -> None:
    rows = history[0].scan(["v", "id"], where="ts = 2").to_arrow()
    assert rows.column_names == ["v", "id"]
    assert rows.to_pylist() == [{"v": "new", "id": "k1"}]
    assert next(history[0].scan(["v", "id"]).to_batches()).schema == rows.schema


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_table_without_commits_reads_as_empty(schema: pa.Schema | None) -> None:
    table = make_table(schema=schema)
    assert table.scan().count() == 0
    assert table.scan().to_arrow().column_names[5:] == ([] if schema is None else schema.names)
    assert table.incremental("earliest").count() == 0
    assert (table.partitions(), table.commits(), tuple(table.timeline)) == ((), (), ())
    assert table.schema.names == ([] if schema is None else schema.names)


def test_commits_have_operation_and_extra_metadata(history: tuple[Table, list[Committed]]) -> None:
    table, steps = history
    assert [instant for instant, _ in table.commits()] == [step.instant for step in steps]
    assert table.last_commit_extra("source") == "third"
    assert table.last_commit_extra("nothing") is None
    assert table.commits_with("source", "first") == steps[0].instant
    assert table.commits_with("source", "second") is None
    assert table.changes(steps[0].instant.completion) == tuple(step.instant for step in steps[1:])
    assert table.partitions() == ("p=a", "p=b")


def test_scan_reads_the_state_at_its_creation(history: tuple[Table, list[Committed]]) -> None:
    table, _ = history
    scan = table.scan(["id"])
    table.upsert(batch([row("k5")]))
    assert ids(scan.to_arrow()) == ["k1", "k4"]
    assert ids(table.scan(["id"]).to_arrow()) == ["k1", "k4", "k5"]


def test_local_table_opens_from_its_path(tmp_path: Path) -> None:
    make_table(env=make_env(str(tmp_path / "t"))).upsert(batch([row("k1")]))
    table = Table.open(str(tmp_path / "t"))
    assert (table.name, table.location) == ("events", str(tmp_path / "t"))
    assert ids(table.scan().to_arrow()) == ["k1"]
    assert table.config.version == 9


def test_half_updated_properties_are_read_from_their_backup() -> None:
    env = make_env()
    make_table(env=env).upsert(batch([row("k1")]))
    properties = ".hoodie/hoodie.properties"
    env.storage.put(f"{properties}.backup", env.storage.get(properties))
    env.storage.delete(properties)
    assert Table.open(env.storage.root, env=env).scan().count() == 1


def test_read_of_no_columns_is_refused(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"])
    table.upsert(pa.table({"id": ["a"]}))
    with pytest.raises(UserError, match="name at least one column"):
        table.scan(columns=[]).count()


def test_explain_names_what_each_step_left(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", partition_by="p", ordering="v", cdc="DATA_BEFORE_AFTER"
    )
    for number in range(4):
        table.bulk_insert(pa.table({"id": [f"k{number}"], "p": ["ab"[number % 2]], "v": [number]}))
    explained = table.scan(where="p = 'a' AND v = 2").explain()
    assert [step.name for step in explained][:3] == ["timeline", "metadata", "partitions"]
    assert (explained.step("metadata").partitions, explained.step("partitions").partitions) == (2, 1)
    assert (explained.step("files").files, explained.step("column_stats").files) == (2, 1)
    assert explained.step("column_stats").bytes == table.scan(where="v = 2").plan().plan.slices.bytes
    assert "column_stats" in str(explained) and "planned in" in repr(explained)
    assert "<table>" in explained._repr_html_()
    with pytest.raises(KeyError):
        explained.step("record_index")
    with pytest.raises(UserError, match="a read of changes"):
        table.incremental("earliest", format="cdc").explain()


def test_planned_read_with_a_metadata_table_lists_no_data_directory(tmp_path: Path) -> None:
    storage = CountingStorage(LocalStorage(str(tmp_path / "t")))
    env = Env(storage=storage)
    table = Table.create(storage.root, name="t", record_key="id", partition_by="p", ordering="v", env=env)
    for number in range(3):
        table.bulk_insert(pa.table({"id": [f"k{number}"], "p": [f"p{number}"], "v": [number]}))
    fresh = Table.open(storage.root, env=Env(storage=storage))
    for where in (None, "p = 'p1'", "v = 1", "id = 'k1'"):
        fresh.scan(where=where).plan()
        storage.reset()
        planned = fresh.scan(where=where).plan()
        counts = storage.counts()
        # The two timelines are listed, because only they name the newest instants.
        assert (counts.get("LIST", 0), len(planned.plan.slices)) == (2, 3 if where is None else 1)
        # The properties are read again, in case another writer changed them.
        assert counts.get("GET", 0) == 1


def test_partition_equality_without_a_metadata_table_lists_one_data_directory(tmp_path: Path) -> None:
    storage = CountingStorage(LocalStorage(str(tmp_path / "t")))
    plain = {"hoodie.metadata.enable": "false"}
    table = Table.create(
        storage.root, name="t", record_key="id", partition_by="p", options=plain, env=Env(storage=storage)
    )
    for number in range(6):
        table.bulk_insert(pa.table({"id": [f"k{number}"], "p": [f"p{number}"]}))
    storage.reset()
    planned = table.scan(where="p = 'p1'").plan()
    assert (storage.counts()["LIST"], len(planned.plan.slices)) == (2, 1)
    storage.reset()
    # A range needs the names of all directories, and lists those that can match.
    planned = table.scan(where="p >= 'p4'").plan()
    assert (storage.counts()["LIST"], len(planned.plan.slices)) == (4, 2)
