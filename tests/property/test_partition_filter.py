"""The partition filter excludes no partition with matching rows, and no directory that leads to one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.planning.partitions import PartitionFilter, partition_ranges
from lakehouse.core.planning.predicate import to_arrow
from lakehouse.core.planning.ranges import ColumnRanges, may_match
from lakehouse.core.rows.partition_path import segment
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, StartsWith
from tests.support.tables import examples

SCHEMA = pa.schema([("s", pa.string()), ("t", pa.string()), ("n", pa.int32()), ("day", pa.date32()), ("v", pa.int64())])
texts = st.sampled_from(["a", "b", "a/b", "a/b/c", "a0", "b/t=a", "t=a", "é%2F", "%", "", "A", "a ", "n=1"])
values: dict[str, st.SearchStrategy[Any]] = {
    "s": texts,
    "t": texts,
    "n": st.integers(-12, 12),
    "day": st.dates(dt.date(2025, 12, 30), dt.date(2026, 1, 3)),
    "v": st.integers(0, 3),
}
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | kind for name, kind in values.items()}), min_size=1, max_size=12
)


@st.composite
def key_configs(draw: st.DrawFn) -> KeyConfig:
    fields = draw(st.lists(st.sampled_from(["s", "t", "n", "day"]), unique=True, min_size=1, max_size=3))
    return KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("v",),
        partition_fields=tuple(fields),
        partition_types=("SIMPLE",) * len(fields),
        hive_style=draw(st.booleans()),
        url_encode=draw(st.booleans()),
    )


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Predicate:
    kind = draw(st.integers(0, 7 if depth else 4))
    if kind >= 5:
        parts = draw(st.lists(predicates(depth=depth - 1), min_size=1, max_size=3).map(tuple))
        return (And(parts), Or(parts), Not(parts[0]))[kind - 5]
    column = draw(st.sampled_from(sorted(values)))
    if kind == 0:
        return IsNull(column)
    if kind == 1:
        return In(column, draw(st.lists(values[column], min_size=1, max_size=4).map(tuple)))
    if kind == 2 and column in ("s", "t"):
        return StartsWith(column, draw(texts))
    return Comparison(column, draw(st.sampled_from(["=", "=", "!=", "<", "<=", ">", ">="])), draw(values[column]))


def path_of(row: dict[str, Any], keys: KeyConfig) -> str | None:
    """Return the partition path of a row; None if it has no safe path."""
    found = [segment(None if (v := row[f]) is None else str(v), f, keys) for f in keys.partition_fields]
    return None if None in found else "/".join(map(str, found))


@given(found=rows, keys=key_configs(), where=predicates())
@examples(500)
def test_partition_filter_keeps_each_directory_that_leads_to_a_matching_row(
    found: list[dict[str, Any]], keys: KeyConfig, where: Predicate
) -> None:
    chosen = PartitionFilter(where=where, schema=SCHEMA, keys=keys)
    table = pa.Table.from_pylist(found, schema=SCHEMA).append_column("at", pa.array(range(len(found))))
    matching = set(table.filter(to_arrow(where, SCHEMA)).column("at").to_pylist())
    computed = chosen.computed()
    for number, row in enumerate(found):
        path = path_of(row, keys)
        if path is None or number not in matching:
            continue
        levels = path.split("/")
        assert chosen.covers(path), (path, where)
        for depth in range(1, len(levels) + 1):
            assert chosen("/".join(levels[:depth])), (path, depth, where)
        if computed is not None:
            assert any(f"{path}/".startswith(f"{directory}/") for directory in computed), (path, computed)


@given(found=rows, keys=key_configs(), where=predicates())
@examples(100)
def test_partition_filter_answers_for_many_paths_as_for_one(
    found: list[dict[str, Any]], keys: KeyConfig, where: Predicate
) -> None:
    chosen = PartitionFilter(where=where, schema=SCHEMA, keys=keys)
    paths = [path for row in found if (path := path_of(row, keys)) is not None]
    many = chosen.select(pa.array(paths, pa.string())).tolist()
    assert many == [chosen.covers(path) for path in paths]
    assert chosen.directories(paths).tolist() == many or len({p.count("/") for p in paths}) > 1 or _has_text(keys)


def _has_text(keys: KeyConfig) -> bool:
    return not keys.url_encode and bool({"s", "t"} & set(keys.partition_fields))


@st.composite
def ranged(draw: st.DrawFn) -> tuple[list[list[int | None]], list[tuple[bool, bool, bool]]]:
    items = draw(st.lists(st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=4), min_size=1, max_size=8))
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
    return items, draw(st.lists(flags, min_size=len(items), max_size=len(items)))


leaves = st.one_of(
    st.builds(Comparison, st.just("n"), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.integers(-4, 4)),
    st.builds(In, st.just("n"), st.lists(st.integers(-4, 4), max_size=4).map(tuple)),
    st.just(IsNull("n")),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(Not), st.lists(inner, max_size=3).map(tuple).map(And), st.lists(inner, max_size=3).map(tuple).map(Or)
    ),
    max_leaves=6,
)


@given(drawn=ranged(), where=conditions)
@examples(500)
def test_ranges_exclude_no_item_with_a_matching_row_and_each_item_that_a_leaf_disproves(
    drawn: tuple[list[list[int | None]], list[tuple[bool, bool, bool]]], where: Predicate
) -> None:
    items, known = drawn
    present = [[value for value in item if value is not None] for item in items]
    ranges = ColumnRanges(
        low=pa.array([min(p) if p and k[0] else None for p, k in zip(present, known, strict=True)], pa.int32()),
        high=pa.array([max(p) if p and k[1] else None for p, k in zip(present, known, strict=True)], pa.int32()),
        nulls=pa.array([i.count(None) if k[2] else None for i, k in zip(items, known, strict=True)], pa.int64()),
        values=pa.array([len(i) if k[2] else None for i, k in zip(items, known, strict=True)], pa.int64()),
    )
    schema = pa.schema([("n", pa.int32())])
    found = may_match(where, {"n": ranges}, schema, len(items))
    expression = to_arrow(where, schema)
    for kept, item in zip(found.tolist(), items, strict=True):
        matching = pa.table({"n": pa.array(item, pa.int32())}).filter(expression).num_rows
        assert kept or not matching, (item, where)
    if isinstance(where, Comparison | In | IsNull):
        exact = may_match(where, {"n": ranges.take(pa.array(np.arange(len(items))))}, schema, len(items))
        assert exact.tolist() == found.tolist()
        for kept, item, of_item in zip(found.tolist(), items, known, strict=True):
            same = len(set(item)) == 1
            matching = pa.table({"n": pa.array(item, pa.int32())}).filter(expression).num_rows
            # An item with one value is decided exactly if everything is known about it.
            assert not (same and all(of_item)) or kept == bool(matching), (item, where)


def test_partition_ranges_of_dates_numbers_and_the_null_partition() -> None:
    keys = KeyConfig(
        generator=KeyGeneratorType.COMPLEX,
        record_key_fields=("v",),
        partition_fields=("day", "n"),
        partition_types=("SIMPLE", "SIMPLE"),
        hive_style=True,
    )
    paths = pa.array(["day=2026-01-01/n=7", "day=__HIVE_DEFAULT_PARTITION__/n=x", "other"])
    ranges = partition_ranges(paths, SCHEMA, keys, SCHEMA.names)
    assert ranges["day"].low.to_pylist() == [dt.date(2026, 1, 1), None, None]
    assert ranges["n"].high.to_pylist() == [7, None, None]
    assert pc.equal(ranges["_hoodie_partition_path"].low, paths).to_pylist() == [True, True, True]
