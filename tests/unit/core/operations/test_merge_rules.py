"""Merge rules of a table: both table types return the same rows as a model that merges version by version."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.merge import UNAVAILABLE
from tests.support.tables import DELETED, Shape, base_files, data_rows, make_env, strays

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("a", pa.int64()),
        ("b", pa.string()),
        ("op", pa.string()),
        ("v", pa.string()),
        ("w", pa.string()),
        ("n", pa.int64()),
    ]
)
Row = dict[str, Any]
Decide = Callable[[Row, Row], Row | None]
MERGER = "tests.support.mergers:add_up"
PLACES = [(kind, index) for kind in ("COPY_ON_WRITE", "MERGE_ON_READ") for index in ("SIMPLE", "BUCKET")]


def make(kind: str, index: str, schema: pa.Schema | None = SCHEMA, **declared: Any) -> Table:
    env = make_env()
    options = Shape(index=index, fills_small_files=True).table_options() | dict(declared.pop("options", {}))
    keys: dict[str, Any] = {"record_key": ["id"], "partition_by": ["p"]}
    return Table.create(
        env.storage.root, name="t", table_type=kind, schema=schema, options=options, env=env, **keys, **declared
    )


def row(id: str, **values: Any) -> Row:
    return {"id": id, "p": "x", "a": 0, "b": None, "op": "c", "v": None, "w": None, "n": 0} | values


def batch(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema)


def by_value(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


def later(new: Row, old: Row, names: Sequence[str]) -> bool:
    return [by_value(new[n]) for n in names] >= [by_value(old[n]) for n in names]


def whole(names: Sequence[str]) -> Decide:
    """Return the event time rule over several ordering columns; op = d marks a delete."""

    def decide(old: Row, new: Row) -> Row | None:
        winner = new if later(new, old, names) else old
        return None if winner["op"] == "d" else winner

    return decide


def filled(names: Sequence[str], yields: Callable[[Any], bool]) -> Decide:
    """Return a partial update rule: values for which `yields` is true come from the other row.

    `names` are the ordering columns; without names, versions are ordered by commit time.
    """

    def decide(old: Row, new: Row) -> Row | None:
        high, low = (new, old) if later(new, old, names) else (old, new)
        if "d" in (old["op"], new["op"]):
            return None if high["op"] == "d" else high
        return {name: low[name] if yields(value) else value for name, value in high.items()}

    return decide


def summed(old: Row, new: Row) -> Row | None:
    text = "+".join(text for text in (old["v"], new["v"]) if text is not None)
    return new | {"n": old["n"] + new["n"], "v": text or None if old["v"] is None and new["v"] is None else text}


RULES: Mapping[str, tuple[dict[str, Any], Decide]] = {
    "several ordering columns and deletes": (
        {"ordering": ["a", "b"], "delete_field": "op", "delete_marker": "d"},
        whole(["a", "b"]),
    ),
    "nulls keep values, by event time": (
        {"ordering": "a", "partial_update": "IGNORE_DEFAULTS", "delete_field": "op", "delete_marker": "d"},
        filled(["a"], lambda value: value is None),
    ),
    "nulls keep values, by commit time": (
        {"partial_update": "IGNORE_DEFAULTS"},
        filled([], lambda value: value is None),
    ),
    "unavailable texts keep values": (
        {"ordering": ["a"], "partial_update": "FILL_UNAVAILABLE", "unavailable_value": "?"},
        filled(["a"], lambda value: value == "?"),
    ),
    "a merger": ({"merger": MERGER}, summed),
}


def versions(seed: int, *, deletes: bool = False, distinct: bool = True, late: bool = True) -> list[list[Row]]:
    """Return batches of random rows.

    Logs are merged before the base file. Late rows therefore fill other gaps than a merge version by version.

    Args:
        seed: Seed of the random values.
        deletes: Whether some rows have a delete marker.
        distinct: Whether each batch has a key at most once.
        late: Whether ordering values may decrease.
    """
    draw = random.Random(seed)
    made = []
    for number in range(5):
        rows = []
        for key in draw.sample("abcdefgh", 6):
            for _ in range(1 if distinct else draw.choice([1, 1, 2])):
                rows.append(
                    row(
                        key,
                        p="x" if key < "e" else "y",
                        a=draw.randrange(4) if late else 2 * number + draw.randrange(2),
                        b=draw.choice([None, "m", "n"]),
                        op="d" if deletes and number and draw.random() < 0.2 else "c",
                        v=draw.choice([None, "?", f"v{number}"]),
                        w=draw.choice([None, "?", f"w{number}"]),
                        n=draw.randrange(9),
                    )
                )
        made.append(rows)
    return made


def modelled(batches: Sequence[Sequence[Row]], decide: Decide) -> list[Row]:
    state: dict[str, Row] = {}
    for new in itertools.chain.from_iterable(batches):
        old = state.get(new["id"])
        merged: Row | None = new if new["op"] != "d" else None
        if old is not None:
            merged = decide(old, new)
        if merged is None:
            state.pop(new["id"], None)
        else:
            state[new["id"]] = merged
    return sorted(state.values(), key=repr)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("seed", range(4))
def test_tables_return_the_rows_of_the_merge_rule(rule: str, kind: str, seed: int) -> None:
    declared, decide = RULES[rule]
    table = make(kind, "SIMPLE", **declared)
    late = kind == "COPY_ON_WRITE" or "partial_update" not in declared
    batches = versions(seed, deletes="delete_field" in declared, late=late)
    for number, rows in enumerate(batches):
        table.upsert(batch(rows))
        assert data_rows(table) == modelled(batches[: number + 1], decide), number
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        assert data_rows(table, read_optimized=True) == modelled(batches, decide)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_repeated_keys_in_a_batch_are_merged_by_the_rule(rule: str, seed: int) -> None:
    declared, decide = RULES[rule]
    ordering = declared.get("ordering", ())
    # Rows of one batch are merged in ascending order; rows with equal ordering values by their other values.
    unordered = ("a", "b", "op", "v", "w", "n")
    order = [*ordering, *(name for name in unordered if name not in ordering)]
    batches = [
        sorted(rows, key=lambda r: [by_value(r[name]) for name in order])
        for rows in versions(seed, distinct=False, late=False)
    ]
    for kind, budget in itertools.product(("COPY_ON_WRITE", "MERGE_ON_READ"), ("2000", "60000000")):
        table = make(kind, "SIMPLE", options={"lakehouse.write.memory.budget": budget}, **declared)
        for rows in batches:
            table.upsert(batch(rows[::-1]))
        assert data_rows(table) == modelled(batches, decide), (kind, budget)


@pytest.mark.parametrize("rule", RULES)
def test_bucket_tables_of_both_types_return_the_same_rows(rule: str) -> None:
    declared, decide = RULES[rule]
    batches = versions(11, late=False)
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        table = make(kind, "BUCKET", **declared)
        for rows in batches:
            table.upsert(batch(rows))
        assert data_rows(table) == modelled(batches, decide), kind


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_rows_with_a_delete_marker_are_not_inserted(kind: str, index: str) -> None:
    table = make(kind, index, ordering="a", delete_field="op", delete_marker="d")
    table.bulk_insert(batch([row("a"), row("b", op="d")]))
    table.insert(batch([row("c"), row("d", op="d")]))
    table.upsert(batch([row("e"), row("f", op="d")]))
    assert [r["id"] for r in data_rows(table)] == ["a", "c", "e"]


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_merger_deletes_a_record_by_the_delete_column(kind: str, index: str) -> None:
    schema = SCHEMA.append(pa.field(DELETED, pa.bool_()))
    table = make(kind, index, schema, merger=MERGER)
    table.upsert(batch([row("a", n=3), row("b", n=3)], schema))
    table.upsert(batch([row("a", n=-4), row("b", n=-2)], schema))
    assert [(r["id"], r["n"]) for r in data_rows(table)] == [("b", 1)]
    # The record is new: values of the deleted record have no effect.
    table.upsert(batch([row("a", n=7)], schema))
    expected = [("a", 7), ("b", 1)] if index == "SIMPLE" or kind == "COPY_ON_WRITE" else [("a", 6), ("b", 1)]
    assert [(r["id"], r["n"]) for r in data_rows(table)] == expected


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_debezium_changes_of_a_postgres_table_are_merged(kind: str, index: str) -> None:
    declared = {"delete_field": "_change_operation_type", "delete_marker": "d", "partial_update": "FILL_UNAVAILABLE"}
    table = make(kind, index, None, ordering="_event_lsn", **declared)

    def change(id: str, lsn: int, op: str, text: str | None) -> Row:
        return {"id": id, "p": "x", "_event_lsn": lsn, "_change_operation_type": op, "text": text}

    table.upsert(
        pa.Table.from_pylist([change("a", 1, "r", "long"), change("b", 2, "c", "b"), change("c", 3, "c", "c")])
    )
    # Debezium sends a placeholder for an unchanged text; one batch may have a row with the text and one without.
    table.upsert(
        pa.Table.from_pylist(
            [
                change("a", 4, "u", UNAVAILABLE),
                change("b", 5, "d", None),
                change("d", 6, "c", "d"),
                change("d", 7, "u", UNAVAILABLE),
            ]
        )
    )
    # Changes that are delivered again are older than the stored rows.
    table.upsert(pa.Table.from_pylist([change("c", 1, "d", None), change("a", 1, "r", "long")]))
    found = [(r["id"], r["_event_lsn"], r["text"]) for r in data_rows(table)]
    assert found == [("a", 4, "long"), ("c", 3, "c"), ("d", 7, "d")]


@pytest.mark.parametrize(("kind", "index"), PLACES)
def test_debezium_changes_of_a_mysql_table_are_merged(kind: str, index: str) -> None:
    table = make(
        kind,
        index,
        None,
        ordering=["_event_bin_file", "_event_pos"],
        delete_field="_change_operation_type",
        delete_marker="d",
    )

    def change(id: str, file: int, pos: int, op: str) -> Row:
        place = {"_event_bin_file": f"mysql-bin.{file:06d}", "_event_pos": pos}
        return {"id": id, "p": "x", "_change_operation_type": op, **place}

    table.upsert(pa.Table.from_pylist([change("a", 3, 900, "c"), change("b", 3, 950, "c"), change("c", 9, 1, "c")]))
    table.upsert(pa.Table.from_pylist([change("a", 4, 20, "u"), change("b", 4, 30, "d"), change("c", 3, 999, "d")]))
    table.upsert(pa.Table.from_pylist([change("a", 3, 999, "d"), change("b", 3, 960, "d")]))
    assert [(r["id"], r["_event_pos"]) for r in data_rows(table)] == [("a", 20), ("c", 1)]


def test_deletes_with_several_ordering_columns_are_kept_by_log_compaction() -> None:
    table = make("MERGE_ON_READ", "BUCKET", ordering=["a", "b"], delete_field="op", delete_marker="d")
    table.upsert(batch([row(k, a=5, b="m") for k in "abcd"]))
    for number, op in enumerate("ddcc"):
        table.upsert(batch([row("abcd"[number], a=5, b="n", op=op, v="new")]))
    table.upsert(batch([row("c", a=5, b="a", op="d"), row("d", a=5, b=None, op="d")]))
    before = data_rows(table)
    assert [(r["id"], r["v"]) for r in before] == [("c", "new"), ("d", "new")]
    table.services.log_compaction.run()
    assert data_rows(table) == before
    table.services.compaction.run(force=True)
    assert data_rows(table) == before


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_merger_refuses_rows_that_move_between_partitions(kind: str) -> None:
    table = make(kind, "GLOBAL_SIMPLE", merger=MERGER)
    table.upsert(batch([row("a", n=1), row("b", n=1)]))
    with pytest.raises(UnsupportedError, match=r"1 stored rows would move .*update\.partition\.path=false"):
        table.upsert(batch([row("a", n=2, p="y"), row("b", n=2)]))
    stay = {"hoodie.simple.index.update.partition.path": "false"}
    table.upsert(batch([row("a", n=2, p="y"), row("b", n=2)]), options=stay)
    assert [(r["id"], r["n"]) for r in data_rows(table)] == [("a", 3), ("b", 3)]
    assert table.partitions() == ("x",)


FAULTS = {
    "drops_rows": "returned 1 rows for 2 pairs",
    "drops_column": "returned columns",
    "changes_type": "returned column 'n' with type double; expected int64",
    "changes_keys": "changed record keys",
    "returns_rows": r"must return a pyarrow\.Table, not list",
    "fails": "failed: ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_invalid_merger_result_raises_an_error_that_names_the_merger(kind: str, fault: str) -> None:
    name = f"tests.support.mergers:{fault}"
    table = make(kind, "SIMPLE", merger=name)
    table.upsert(batch([row("a"), row("b")]))
    storage = table.refresh().env.storage
    files, commits = len(base_files(storage)), len(table.commits())
    message = f"merger '{name}' {FAULTS[fault]}"
    if kind == "MERGE_ON_READ":
        # Logs are appended without reading, so the error is raised by reads and compactions.
        table.upsert(batch([row("a"), row("b")]))
        with pytest.raises(UserError, match=message):
            table.scan().to_arrow()
        assert table.scan(["id"], read_optimized=True).count() == 2
        with pytest.raises(UserError, match=message):
            table.services.compaction.run(force=True)
        assert len(base_files(storage)) == files and len(table.commits()) == commits + 1
        return
    with pytest.raises(UserError, match=message):
        table.upsert(batch([row("a"), row("b")]))
    assert (len(base_files(storage)), len(table.commits()), strays(storage)) == (files, commits, [])


def test_opening_a_table_with_a_missing_merger_raises_an_error() -> None:
    table = make("MERGE_ON_READ", "SIMPLE", merger=MERGER)
    env = table.refresh().env
    properties = parse_properties(env.storage.get(".hoodie/hoodie.properties"))
    key = "hoodie.record.merge.property.lakehouse.merger"
    env.storage.put(".hoodie/hoodie.properties", render_properties(properties | {key: "gone.away:merge"}))
    with pytest.raises(UserError, match=r"merger 'gone\.away:merge' cannot be loaded.*PYTHONPATH"):
        Table.open(env.storage.root, allowed_functions=["gone.*"], env=env)


def test_create_refuses_a_delete_column_that_the_schema_lacks() -> None:
    with pytest.raises(UserError, match=r"'opp' is not in the data\. Did you mean 'op'"):
        make("MERGE_ON_READ", "SIMPLE", delete_field="opp", delete_marker="d")
