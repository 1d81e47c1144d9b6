"""The scan plan skips no file with a matching row, for any rows, predicate and promotion of column types."""

from __future__ import annotations

import datetime as dt
import io
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.base.base_reader import align
from lakehouse.core.files.base.base_writer import column_ranges
from lakehouse.core.planning.key_ranges import decode_ranges, encode_ranges
from lakehouse.core.planning.predicate import Range, parse_predicate, to_arrow
from lakehouse.core.planning.scan import plan_scan
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, StartsWith
from tests.support.tables import examples

KEYS = KeyConfig(
    generator=KeyGeneratorType.SIMPLE,
    record_key_fields=("i",),
    partition_fields=("p",),
    partition_types=("SIMPLE",),
    url_encode=True,
)
SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("i", pa.int32()),
        ("n", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("utc", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
    ]
)
#: Types to which columns were promoted after the files were written.
PROMOTED = {"i": pa.string(), "n": pa.float64(), "f": pa.string(), "day": pa.string(), "money": pa.decimal128(20, 4)}
moments = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
values: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-12, 12),
    "n": st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
    "f": st.one_of(st.sampled_from([0.1, -0.0, 0.0, math.nan, math.inf]), st.floats(-9, 9, width=32)),
    "d": st.one_of(st.sampled_from([0.1, -0.0, 0.0, math.nan, -math.inf]), st.floats(-9, 9)),
    "s": st.one_of(st.sampled_from(["", "a", "ab", "b", "𐐷", "\uffff", "x" * 70]), st.text(max_size=3)),
    "b": st.booleans(),
    "day": st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)),
    "at": moments,
    "utc": moments.map(lambda m: m.replace(tzinfo=dt.UTC)),
    "money": st.decimals(-99, 99, places=2),
    "raw": st.binary(max_size=3),
}
partitions = st.sampled_from(["a", "b/c", "x=y", "7"])


@st.composite
def files(draw: st.DrawFn) -> list[pa.Table]:
    """Draw the rows of one to four files; each file has one partition value and few rows, so that ranges are narrow."""
    tables = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 4))
        value = draw(partitions)
        columns: dict[str, list[Any]] = {"p": [value] * count}
        for name, kinds in values.items():
            columns[name] = draw(st.lists(st.one_of(kinds, kinds, st.none()), min_size=count, max_size=count))
        tables.append(pa.table({f.name: pa.array(columns[f.name], f.type) for f in SCHEMA}, schema=SCHEMA))
    return tables


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Predicate:
    """Draw predicates over SCHEMA; the literals have the column types before promotion."""
    kind = draw(st.integers(0, 6 if depth else 3))
    if kind >= 4:
        parts = draw(st.lists(predicates(depth=depth - 1), min_size=1, max_size=2).map(tuple))
        return (And(parts), Or(parts), Not(parts[0]))[kind - 4]
    column = draw(st.sampled_from(sorted(values)))
    literals = partitions if column == "p" else values[column].filter(lambda v: v == v)
    if kind == 0:
        return IsNull(column)
    if kind == 1:
        return In(column, draw(st.lists(literals, min_size=1, max_size=3).map(tuple)))
    if kind == 2 and column == "s":
        return StartsWith(column, draw(st.sampled_from(["", "a", "ab", "x" * 65, "𐐷"])))
    return Comparison(column, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), draw(literals))


def recorded(tables: list[pa.Table], schema: pa.Schema) -> tuple[list[FileSlice], dict[str, dict[str, Range]]]:
    """Return the file slices, and the column ranges in commit metadata as a reader with `schema` decodes them."""
    slices, stats = [], []
    for number, rows in enumerate(tables):
        sink = io.BytesIO()
        pq.write_table(rows, sink, row_group_size=2)
        path = rows.column("p")[0].as_py().replace("/", "%2F").replace("=", "%3D")
        base = BaseFile(partition=path, file_id=f"{number}-0", write_token="0-0-0", instant="20260101000000000")
        slices.append(FileSlice(partition=path, file_id=base.file_id, base_instant=base.instant, base=base))
        ranges = column_ranges(pq.ParquetFile(sink).metadata)
        stats.append(WriteStat(partition=path, file_id=base.file_id, path=base.path, ranges=ranges))
    return slices, decode_ranges(encode_ranges(stats), schema)


def assert_nothing_lost(tables: list[pa.Table], schema: pa.Schema, where: Predicate, *, forget: bool) -> None:
    slices, ranges = recorded(tables, schema)
    plan = plan_scan(slices, schema, KEYS, columns=None, where=where, ranges={} if forget else ranges)
    read = {file.path for file in plan.files}
    assert plan.skipped == len(slices) - len(read)
    for file_slice, rows in zip(slices, tables, strict=True):
        matching = align(rows, schema).filter(to_arrow(where, schema))
        assert matching.num_rows == 0 or file_slice.base.path in read, (where, matching.to_pylist())


@examples(150)
@given(tables=files(), where=predicates(), forget=st.booleans())
def test_scan_plan_skips_no_file_with_a_matching_row(tables: list[pa.Table], where: Predicate, forget: bool) -> None:
    assert_nothing_lost(tables, SCHEMA, where, forget=forget)


@examples(80)
@given(
    tables=files(),
    text=st.sampled_from(
        [
            "i = '7'",
            "i > '1'",
            "i IN ('-1', '10')",
            "i LIKE '1%'",
            "n >= 2.5",
            "n != 0",
            "f < '2'",
            "day BETWEEN '1999-12-31' AND '2020-01-01'",
            "money = 1.2345",
            "NOT (money > 0)",
            "p = 'b/c' OR p = '7'",
        ]
    ),
)
def test_scan_plan_skips_no_file_with_a_matching_row_after_type_promotion(tables: list[pa.Table], text: str) -> None:
    schema = pa.schema([field.with_type(PROMOTED.get(field.name, field.type)) for field in SCHEMA])
    assert_nothing_lost(tables, schema, parse_predicate(text), forget=False)
