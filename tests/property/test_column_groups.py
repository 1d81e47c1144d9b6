"""Column groups: the rows do not depend on the order in which the versions of different writers arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.column_groups import ColumnGroup, declared_groups, groups_text, parse_groups
from lakehouse.platform.catalog.declared_tables import create_declared_table, open_declared_table
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import Shape, data_rows, examples, make_env

GROUPS = {"rider_ts": ["rider"], "order_ts": ["amount", "city"], "pay_ts": ["paid"]}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("rider_ts", pa.int64()),
        ("rider", pa.string()),
        ("order_ts", pa.int64()),
        ("amount", pa.int64()),
        ("city", pa.string()),
        ("pay_ts", pa.int64()),
        ("paid", pa.string()),
    ]
)
PLACES = [("COPY_ON_WRITE", "SIMPLE"), ("MERGE_ON_READ", "SIMPLE"), ("MERGE_ON_READ", "BUCKET")]


def make(kind: str, index: str, **declared: Any) -> Table:
    env = make_env()
    options = Shape(index=index, fills_small_files=True).table_options()
    declared = {"column_groups": GROUPS, "schema": SCHEMA, **declared}
    return Table.create(
        env.storage.root, name="t", record_key=["id"], table_type=kind, options=options, env=env, **declared
    )


def versions(group: str, rows: Sequence[tuple[str, int, int]]) -> pa.Table:
    """Return a batch of one group; a value says which key, time and writer it is from, or is null."""
    names = GROUPS[group]
    columns: dict[str, Any] = {"id": [key for key, _, _ in rows], group: [moment for _, moment, _ in rows]}
    for name in names:
        values = [None if value == 0 else value if name == "amount" else f"{name}{value}" for _, _, value in rows]
        columns[name] = values
    return pa.table(columns, pa.schema([SCHEMA.field(name) for name in ("id", group, *names)]))


def expected(batches: Sequence[tuple[str, Sequence[tuple[str, int, int]]]]) -> list[dict[str, Any]]:
    """Merge row by row: per key and group, the version with the greatest time; the later one wins a tie."""
    model: dict[str, dict[str, Any]] = {}
    for group, rows in batches:
        columns = versions(group, rows)
        for row in columns.to_pylist():
            stored = model.setdefault(row["id"], dict.fromkeys(SCHEMA.names) | {"id": row["id"]})
            if stored[group] is None or row[group] >= stored[group]:
                stored.update(row)
    return sorted(model.values(), key=repr)


def one_per_key(rows: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return list({row[0]: row for row in rows}.values())


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=5)
BATCHES = st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), ROWS.map(one_per_key)), min_size=1, max_size=8)


@pytest.mark.parametrize(("kind", "index"), PLACES)
@examples(16)
@given(batches=BATCHES, compact_after=st.integers(0, 7))
def test_rows_equal_the_merge_of_each_group_by_its_ordering_column(
    kind: str, index: str, batches: list[tuple[str, list[tuple[str, int, int]]]], compact_after: int
) -> None:
    table = make(kind, index)
    for number, (group, rows) in enumerate(batches):
        table.upsert(versions(group, rows))
        if number == compact_after and kind == "MERGE_ON_READ":
            table.services.compaction.run()
    wanted = expected(batches)
    assert data_rows(table) == wanted
    # A query of one column reads the ordering column of its group, too.
    amounts = table.scan(["id", "amount"]).to_arrow().to_pylist()
    assert sorted(amounts, key=repr) == sorted(({"id": row["id"], "amount": row["amount"]} for row in wanted), key=repr)
    found = table.scan(where="amount = 3").to_arrow().column("id").to_pylist()
    assert sorted(found) == sorted(row["id"] for row in wanted if row["amount"] == 3)


@examples(12)
@given(batches=BATCHES, data=st.data())
def test_order_of_arrival_does_not_matter_if_times_are_distinct(
    batches: list[tuple[str, list[tuple[str, int, int]]]], data: st.DataObject
) -> None:
    distinct = [
        (group, [(key, 10 * moment + number, value) for key, moment, value in rows])
        for number, (group, rows) in enumerate(batches)
    ]
    shuffled = data.draw(st.permutations(distinct))
    tables = [make("MERGE_ON_READ", "BUCKET") for _ in range(2)]
    for table, order in zip(tables, (distinct, shuffled), strict=True):
        for group, rows in order:
            table.upsert(versions(group, rows))
    assert data_rows(tables[0]) == data_rows(tables[1])


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_versions_of_one_batch_are_merged_by_group(kind: str, index: str) -> None:
    table = make(kind, index)
    table.upsert(versions("rider_ts", [("a", 3, 3), ("a", 1, 1), ("b", 2, 2)]))
    assert [(row["id"], row["rider"]) for row in data_rows(table)] == [("a", "rider3"), ("b", "rider2")]


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_deleted_record_returns_with_the_next_version_of_a_group(kind: str, index: str) -> None:
    table = make(kind, index)
    table.upsert(versions("rider_ts", [("a", 3, 3)]))
    table.delete(["a"])
    assert data_rows(table) == []
    table.upsert(versions("order_ts", [("a", 1, 1)]))
    assert [(row["id"], row["rider"], row["amount"]) for row in data_rows(table)] == [("a", None, 1)]


@pytest.mark.parametrize("services", [(), ("log_compaction",), ("compaction",), ("log_compaction", "compaction")])
@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_record_that_follows_a_delete_is_not_merged_with_the_deleted_one(
    kind: str, index: str, services: tuple[str, ...]
) -> None:
    added = {"schema": None, "column_groups": {}, "merger": "tests.support.mergers:add_up"}
    table = make(kind, index, **added)
    for rows in ([("a", 3), ("b", 1)], [("b", 5)]):
        table.upsert(pa.table({"id": [key for key, _ in rows], "n": [n for _, n in rows]}))
    table.delete(["a"])
    table.upsert(pa.table({"id": ["a"], "n": [4]}))
    table.upsert(pa.table({"id": ["a"], "n": [1]}))
    for service in services if kind == "MERGE_ON_READ" else ():
        if service == "log_compaction":
            table = table.with_options({"hoodie.log.compaction.blocks.threshold": "1"})
            table.services.log_compaction.run()
        else:
            table.services.compaction.run()
    assert [(row["id"], row["n"]) for row in data_rows(table)] == [("a", 5), ("b", 6)]


def test_opened_table_merges_groups_without_permission_for_a_function() -> None:
    table = make("MERGE_ON_READ", "BUCKET")
    table.upsert(versions("rider_ts", [("a", 3, 3)]))
    opened = Table.open(table.location, env=table._env)
    opened.upsert(versions("rider_ts", [("a", 2, 2)]))
    assert [row["rider"] for row in data_rows(opened)] == ["rider3"]


def test_batch_without_the_ordering_column_of_a_group_is_refused() -> None:
    table = make("MERGE_ON_READ", "BUCKET")
    with pytest.raises(UserError, match="'paid' belongs to the column group that 'pay_ts' orders"):
        table.upsert(pa.table({"id": ["a"], "paid": ["x"]}))
    assert data_rows(table) == []


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"column_groups": {"t": []}}, "has no columns"),
        ({"column_groups": {"t": ["v"], "u": ["v"]}}, "'v' is named twice"),
        ({"column_groups": {"t": ["id"]}}, "'id' is a key"),
        ({"column_groups": {"t": ["a=b"]}}, "'a=b' is not the name of a column"),
        ({"column_groups": {"t": ["a.b"]}}, "'a.b' is not the name of a column"),
        ({"column_groups": {"t": ["v"]}, "ordering": "w"}, "remove ordering"),
        ({"column_groups": {"t": ["v"]}, "merger": "m:f"}, "keep one"),
        ({"column_groups": {"t": ["v"]}, "partial_update": "IGNORE_DEFAULTS"}, "column groups fill gaps"),
        ({"column_groups": {"t": ["v"]}, "merge_mode": "COMMIT_TIME_ORDERING"}, "does not merge by groups"),
    ],
)
def test_contradictory_groups_are_refused(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make("MERGE_ON_READ", "BUCKET", schema=None, **declared)


def test_groups_and_their_text_are_equal() -> None:
    groups = declared_groups(GROUPS)
    assert groups[0] == ColumnGroup(ordering="rider_ts", columns=("rider",))
    assert parse_groups(groups_text(groups)) == groups
    with pytest.raises(CorruptTableError, match="does not declare column groups"):
        parse_groups("rider_ts")


def test_spec_with_other_groups_than_the_table_is_refused() -> None:
    text = "table: t\nlocation: lake/t\nrecord_key: id\ntype: MERGE_ON_READ\ncolumn_groups: {rider_ts: [rider]}\n"
    env, spec = make_env(), parse_spec(text, source="t.yaml")
    placed = replace(spec, location=env.storage.root)
    create_declared_table(placed, {}, env)
    assert open_declared_table(placed, {}, env) is not None
    for other in ("column_groups: {rider_ts: [rider, city]}", ""):
        changed = parse_spec(text.replace("column_groups: {rider_ts: [rider]}", other), source="t.yaml")
        with pytest.raises(UserError, match=r"column_groups \[.*created with \[rider_ts=rider\]"):
            open_declared_table(replace(changed, location=env.storage.root), {}, env)


def test_eight_writers_fill_two_hundred_columns_at_once_beside_a_compaction(tmp_path: Path) -> None:
    groups = {f"at{writer}": [f"c{writer}_{n}" for n in range(24)] for writer in range(8)}
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    location = str(tmp_path / "wide")
    table = Table.create(
        location, name="wide", record_key="id", table_type="MERGE_ON_READ", column_groups=groups, options=options
    )
    batches = {writer: [(number, random.Random(f"{writer}/{number}")) for number in range(4)] for writer in range(8)}
    newest: dict[tuple[int, str], tuple[int, int]] = {}
    tables: dict[int, list[pa.Table]] = {}
    for writer, parts in batches.items():
        for number, source in parts:
            keys = [f"k{n}" for n in source.sample(range(60), 40)]
            times = [source.randrange(1000) * 100 + writer * 10 + number for _ in keys]
            columns: dict[str, Any] = {"id": keys, f"at{writer}": times}
            columns |= {name: [moment * 100 + n for moment in times] for n, name in enumerate(groups[f"at{writer}"])}
            tables.setdefault(writer, []).append(pa.table(columns))
            for key, moment in zip(keys, times, strict=True):
                newest[writer, key] = max(newest.get((writer, key), (0, 0)), (moment, moment))

    def write(writer: int) -> None:
        own = Table.open(location, options=mode)
        for rows in tables[writer]:
            own.upsert(rows)

    def compact() -> None:
        for _ in range(2):
            Table.open(location, options=mode).services.compaction.run(force=True)

    with ThreadPoolExecutor(9) as threads:
        for done in [*(threads.submit(write, writer) for writer in range(8)), threads.submit(compact)]:
            done.result()
    table.refresh()
    assert len(table.schema) == 1 + 8 * 25
    for row in table.scan().to_arrow().to_pylist():
        for writer in range(8):
            moment = newest.get((writer, row["id"]), (None, None))[0]
            assert row[f"at{writer}"] == moment
            found = [row[name] for name in groups[f"at{writer}"]]
            assert found == [None if moment is None else moment * 100 + n for n in range(24)]
    assert table.scan().count() == len({key for _, key in newest})
    drifts = [commit.extra.get("lakehouse.schema.drift", "") for _, commit in table.commits()]
    assert not any("kept" in text for text in drifts), "columns of other writers are no drift"
