"""A dataset with any filter returns the rows of the whole table that Arrow selects with the same filter."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakehouse.core.format.arrow_expression import decode_expression
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.planning.arrow_filter import pruning_predicate
from lakehouse.core.planning.predicate import matching
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import examples, make_env

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(6, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("numbers", pa.list_(pa.int64())),
    ]
)
FLOATS = [math.nan, 0.0, -0.0, 1.5, -2.0, math.inf, 0.1]
DAYS = [dt.date(1969, 12, 31), dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
TIMES = [dt.datetime(2026, 1, 1, hour, microsecond=part, tzinfo=dt.UTC) for hour in (0, 5) for part in (0, 1)]
VALUES: dict[str, list[Any]] = {
    "id": [f"k{number}" for number in range(12)],
    "p": ["a", "b", "a/b", ""],
    "n": [-2, 0, 1, 5],
    "f": FLOATS,
    "g": FLOATS,
    "s": ["", "a", "ab", "b'\"`\n)", "𐐷", "\uffff"],
    "b": [True, False],
    "d": [Decimal("-1.00"), Decimal("0.00"), Decimal("1.25")],
    "day": DAYS,
    "at": TIMES,
    "place.city": ["x", "y'"],
    "place.zip": [1, 2],
}
#: Other types of literals that Arrow compares with a column.
OTHER_TYPES: dict[str, list[pa.DataType]] = {
    "n": [pa.int64(), pa.uint8(), pa.float64()],
    "f": [pa.float32(), pa.int64()],
    "g": [pa.float64(), pa.int64()],
    "d": [pa.decimal128(3, 0), pa.decimal128(9, 4), pa.int64(), pa.float64()],
    "at": [pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Rome")],
    "s": [pa.large_string(), pa.string_view()],
    "day": [pa.timestamp("us")],
}
#: Values in the rows of a file are next to each other in these lists, so that files have different ranges.
COLUMNS = [name for name in SCHEMA.names if name not in ("id", "p", "place", "numbers")]


def _rows(first: int, shift: int) -> pa.Table:
    """Return 6 rows; their values depend on the key and on `shift`."""
    rows = []
    for key in range(first, first + 6):
        row: dict[str, Any] = {"id": f"k{key}", "p": ("a", "b", "a/b", None)[key // 3]}
        for position, name in enumerate(COLUMNS):
            values = [*VALUES[name], None]
            row[name] = values[(key // 2 + shift * (position + 1)) % len(values)]
        row["place"] = None if key % 5 == 4 else {"city": ("x", "y'", None)[key % 3], "zip": key % 3}
        row["numbers"] = list(range(key % 3)) if key % 4 else None
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@cache
def table_of(kind: str) -> tuple[Table, pa.Table]:
    """Return a table with several commits, and all its rows."""
    options = {"hoodie.metadata.index.column.stats.enable": "true"} if kind == "metadata" else {}
    table = Table.create(
        "memory://filters/t",
        name="t",
        record_key="id",
        partition_by="p",
        table_type="COPY_ON_WRITE" if kind == "COPY_ON_WRITE" else "MERGE_ON_READ",
        schema=SCHEMA,
        options=options | {"hoodie.metadata.enable": str(kind == "metadata").lower()},
        env=make_env(storage=MemoryStorage(f"memory://filters-{kind}/t")),
    )
    table.upsert(_rows(0, 0))
    table.upsert(_rows(6, 1))
    table.upsert(_rows(3, 2))
    return table, table.scan().to_arrow()


def _field(name: str) -> pc.Expression:
    return pc.field(*name.split("."))


def _type(name: str) -> pa.DataType:
    if name.startswith("place."):
        return SCHEMA.field("place").type.field(name.removeprefix("place.")).type
    return SCHEMA.field(name).type


@st.composite
def literals(draw: st.DrawFn, name: str) -> pa.Scalar:
    value = draw(st.sampled_from([*VALUES[name], None]))
    kind = draw(st.sampled_from([_type(name), _type(name), *OTHER_TYPES.get(name, [])]))
    try:
        return pa.scalar(value, _type(name)).cast(kind)
    except pa.ArrowException:
        return pa.scalar(value, _type(name))


@st.composite
def conditions(draw: st.DrawFn) -> pc.Expression:
    """Return a condition on one column, in the forms that DuckDB, Polars and users write."""
    name = draw(st.sampled_from(sorted(VALUES)))
    field = _field(name)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([field.is_null(), field.is_valid(), field.is_null(nan_is_null=True)]))
    if kind == 1:
        listed = field.isin(pa.array(draw(st.lists(st.sampled_from([*VALUES[name], None]), max_size=3)), _type(name)))
        as_duckdb = pc.if_else(field.is_valid(), listed, pa.scalar(None, pa.bool_()))
        return draw(st.sampled_from([listed, as_duckdb]))
    if kind == 2 and pa.types.is_string(_type(name)):
        return pc.starts_with(field, draw(st.sampled_from(VALUES[name])), ignore_case=draw(st.booleans()))
    if kind == 3:
        return draw(st.sampled_from([_field("b"), pc.scalar(True), pc.scalar(False), pc.is_nan(_field("f"))]))
    if kind == 4:
        return draw(st.sampled_from([_field("n") == _field("place.zip"), _field("n").cast(pa.int64()) > 0]))
    functions = [pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal]
    sides = [field, pc.scalar(draw(literals(name)))]
    return draw(st.sampled_from(functions))(*(reversed(sides) if draw(st.booleans()) else sides))


@st.composite
def filters(draw: st.DrawFn, depth: int = 2) -> pc.Expression:
    if not depth:
        return draw(conditions())
    kind = draw(st.integers(0, 6))
    if kind < 3:
        return draw(conditions())
    first, second = draw(filters(depth=depth - 1)), draw(filters(depth=depth - 1))
    if kind == 6:
        return pc.if_else(draw(conditions()), first, second)
    return (first & second, first | second, ~first)[kind - 3]


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ", "metadata"])
@examples(160)
@given(expression=filters(), columns=st.none() | st.lists(st.sampled_from(SCHEMA.names), unique=True, max_size=3))
def test_dataset_returns_the_rows_that_arrow_selects(
    kind: str, expression: pc.Expression, columns: list[str] | None
) -> None:
    table, rows = table_of(kind)
    dataset = table.scan().to_pyarrow_dataset()
    try:
        expected = rows.filter(expression)
    except (pa.ArrowException, TypeError):
        with pytest.raises(UserError, match="does not fit"):
            dataset.to_table(filter=expression)
        return
    expected = expected.select(columns if columns is not None else rows.column_names)
    result = dataset.to_table(columns, filter=expression)
    assert sorted(map(repr, result.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert dataset.count_rows(expression) == len(expected)


@examples(160)
@given(filters())
def test_pruning_predicate_holds_for_every_row_that_arrow_selects(expression: pc.Expression) -> None:
    _, rows = table_of("COPY_ON_WRITE")
    try:
        selected = rows.filter(expression)
    except (pa.ArrowException, TypeError):
        assume(False)
    decode_expression(expression)
    predicate = pruning_predicate(expression, rows.schema)
    if predicate is not None:
        assert matching(selected, predicate, rows.schema).num_rows == selected.num_rows


def test_rows_of_the_tables_differ_in_their_files() -> None:
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ", "metadata"):
        table, rows = table_of(kind)
        assert rows.num_rows == 12
        assert len(table.scan().plan().plan.slices) == 4  # type: ignore[union-attr]
        narrow = table.scan().to_pyarrow_dataset().scanner([META_COLUMNS[0]], _field("p") == "a").plan()
        assert len(narrow.plan.slices) == 1  # type: ignore[union-attr]
