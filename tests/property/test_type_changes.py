"""Reads after a change of the type of a column return the rows of a scan without pruning, for all allowed changes.

The types of a column change from batch to batch, at the top level and in a struct. The ranges come from statistics of
columns, of partitions and of expressions in the metadata table, from commits, and from footers.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.files.base.base_reader import convert
from lakehouse.core.files.base.column_bounds import array_bounds, bounds_array, converted_bounds
from lakehouse.core.format.metadata.bounds import has_statistics
from lakehouse.core.format.metadata.statistics import retyped_statistics, statistics_of, typed_statistics
from lakehouse.core.metadata.partitions.file_statistics import bounds_table
from lakehouse.core.operations.read import file_metadata, pruning
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.planning.predicate import matching
from lakehouse.core.planning.schema import promotion
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.model.predicate import Applied, Call, Comparison, In, IsNull, Not, Predicate
from lakehouse.spec.options.metadata import STATISTICS_COLUMNS
from tests.support.tables import examples


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    numbers = st.sampled_from([most, -most, 0, 1]) | st.integers(-most, most)
    return numbers.map(lambda number: Decimal(f"{number}E-{scale}"))


def floats(width: int) -> st.SearchStrategy[float]:
    numbers = st.floats(width=width)  # type: ignore[arg-type]
    return st.sampled_from([math.nan, 0.0, -0.0, math.inf, -math.inf, 1e7, 1.5]) | numbers


#: Days since 1970-01-01; conditions name only days that Python can represent.
DAYS = st.sampled_from([-719_529, -719_162, -1, 0, 19_000, 2_932_896, 2_932_897]) | st.integers(-719_162, 2_932_896)
TEXTS = st.sampled_from(["", "5", "10", "-1", "2020-01-01", "NaN", "a", "\uffff", "𐐷", "x" * 600])
VALUES: Mapping[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.sampled_from([-(2**31), 2**31 - 1, 5, 10, -1]) | st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 5]) | st.integers(-(2**63), 2**63 - 1),
    pa.float32(): floats(32),
    pa.float64(): floats(64),
    pa.date32(): DAYS,
    pa.string(): TEXTS,
    pa.binary(): TEXTS.map(str.encode),
    pa.decimal128(5, 2): decimals(5, 2),
    pa.decimal128(7, 2): decimals(7, 2),
    pa.decimal128(7, 3): decimals(7, 3),
    pa.decimal128(38, 20): decimals(38, 20),
}
CHANGES = [(narrow, wide) for narrow, wide in permutations(VALUES, 2) if promotion(narrow, wide) is not None]


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    return pa.array(values, kind)


def covers(low: Any, high: Any, values: pa.Array) -> bool:
    """Return whether all values are between two scalars; NaN is greater than all numbers."""
    values = values.drop_null()
    inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    if pa.types.is_floating(values.type):
        below = pc.or_(pc.greater_equal(values, low), pc.is_nan(values))
        inside = pc.and_(below, pc.or_(pc.is_nan(high), pc.less_equal(values, high)))
    return bool(pc.all(inside, min_count=0).as_py())


def test_allowed_changes_of_types_are_all_tested() -> None:
    texts = [narrow for narrow, wide in CHANGES if wide == pa.string()]
    assert len(CHANGES) == 18 and set(texts) == set(VALUES) - {pa.string()} - set(filter(pa.types.is_decimal, VALUES))


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} -> {change[1]}")
@given(data=st.data())
@examples(30)
def test_statistics_before_a_change_contain_the_converted_values(
    change: tuple[pa.DataType, pa.DataType], version: str, data: st.DataObject
) -> None:
    narrow, wide = change
    if not (has_statistics(narrow, version) and has_statistics(wide, version)):
        return
    values = array_of(data.draw(st.lists(st.none() | VALUES[narrow], min_size=1, max_size=4)), narrow)
    converted = convert(pa.chunked_array([values]), wide).combine_chunks()
    bounds = array_bounds(values)
    keys = pa.array(["f"])
    rows = statistics_of(bounds_table(["f"], [bounds], narrow, tight=True), "v", keys, version=version)
    for stored in (rows, retyped_statistics(rows, {"v": wide}, version)):
        (minimum, maximum), known = (
            (
                (typed.column(name)[0] for name in ("min", "max"))
                if (typed := typed_statistics(stored, wide)).num_rows
                else (None, None)
            ),
            typed.column("known")[0].as_py(),
        )
        if known and minimum.is_valid:
            assert covers(minimum, maximum, converted)
        elif known:
            assert not len(converted.drop_null())
    found = converted_bounds(bounds, narrow, wide)
    if found is not None and found.low is not None:
        assert covers(bounds_array([found.low], wide)[0], bounds_array([found.high], wide)[0], converted)
    elif found is not None:
        assert not len(converted.drop_null())


#: Where a read finds the ranges of columns in files.
STATISTICS = ["metadata table", "expressions", "commits", "footers"]
IDENTITY = Call(function="identity", column="v")
Batch = tuple[str, pa.DataType, list[Any], str]


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Return batches (verb, type, values, partition) whose types a table accepts one after the other."""
    kind = draw(st.sampled_from([narrow for narrow, _ in CHANGES]))
    table, found = kind, list[Batch]()
    for _ in range(draw(st.integers(2, 4))):
        values = draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=3))
        verb = draw(st.sampled_from(["bulk_insert", "insert", "upsert"]))
        found.append((verb, kind, values, draw(st.sampled_from("aab"))))
        table = kind if promotion(kind, table) is None else table
        kind = draw(st.sampled_from([*(wide for narrow, wide in CHANGES if narrow == table), table]))
    return found


def rows_of(values: pa.Array, first: int, partition: str) -> pa.Table:
    nested = pa.StructArray.from_arrays([values], fields=[pa.field("v", values.type)])
    ids = [f"k{first + n}" for n in range(len(values))]
    return pa.table({"id": ids, "p": [partition] * len(ids), "v": values, "s": nested})


def conditions_on(whole: pa.Table, *, expression: bool) -> list[Predicate]:
    """Return conditions with the values of a table, and with others."""
    kind = whole.schema.field("v").type
    literals = []
    for value in pc.unique(whole.column("v")).drop_null():
        plain = int(value.cast(pa.int32()).as_py()) if pa.types.is_date32(kind) else value.as_py()
        if pa.types.is_date32(kind):
            if not -719_162 <= plain <= 2_932_896:
                continue
            plain = dt.date(1970, 1, 1) + dt.timedelta(days=plain)
        if plain == plain:
            literals.append(plain)
    found: list[Predicate] = []
    for column in (IDENTITY.text,) if expression else ("v", "s.v"):
        parts: list[Predicate] = [IsNull(column), Not(IsNull(column))]
        parts += [Comparison(column, operator, value) for value in literals for operator in ("=", "<", ">", ">=", "!=")]
        parts += [In(column, tuple(literals))] if literals else []
        found += [
            _applied(part) if expression else part for part in parts if not (isinstance(part, In) and not literals)
        ]
    return found


def _applied(part: Predicate) -> Predicate:
    if isinstance(part, Not):
        return Not(_applied(part.part))
    assert isinstance(part, Comparison | In | IsNull)
    return Applied(IDENTITY, part)


def table_of(statistics: str, table_type: str) -> Table:
    metadata = statistics in ("metadata table", "expressions")
    table = Table.create(
        "memory://t",
        name="t",
        record_key="id",
        partition_by="p",
        table_type=table_type,
        options={
            "hoodie.metadata.enable": str(metadata).lower(),
            "hoodie.metadata.index.column.stats.enable": str(statistics == "metadata table").lower(),
            "lakehouse.schema.type.change": "any",
            **({STATISTICS_COLUMNS: "v,s.v"} if statistics == "metadata table" else {}),
        },
        env=Env(storage=MemoryStorage()),
    )
    return table


def counted(found: pa.Table) -> Counter[str]:
    # Python has no dates outside of the years 1 to 9999.
    casted = found.cast(pa.schema([f.with_type(pa.int32()) if pa.types.is_date32(f.type) else f for f in found.schema]))
    return Counter(map(repr, casted.to_pylist()))


def check(table: Table, statistics: str) -> None:
    whole = table.scan(["id", "v", "s"]).to_arrow()
    for where in conditions_on(whole, expression=statistics == "expressions"):
        scan = plan_read(table.refresh(), ScanRequest(where=where))
        assert isinstance(scan, Scan)
        pruned = pa.Table.from_batches(scan.batches(), scan.schema).select(["id"])
        assert counted(pruned) == counted(matching(whole, where, whole.schema).select(["id"])), where


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@given(history=histories(), service=st.sampled_from(["none", "cluster", "compact", "rebuild"]))
@examples(10)
def test_pruned_read_after_changes_of_types_equals_the_filtered_scan(
    table_type: str, statistics: str, history: list[Batch], service: str
) -> None:
    table, count = table_of(statistics, table_type), 0
    with pytest.MonkeyPatch.context() as patch:
        if statistics == "footers":
            patch.setattr(file_metadata, "_FOOTER_WORTH_BYTES", 0)
            patch.setattr(pruning, "commit_ranges", lambda table, slices: {})
        for number, (verb, kind, values, partition) in enumerate(history):
            if statistics == "expressions" and number == 1:
                table.services.create_expression_index("same=identity(v)")
                assert isinstance(table.services.index.run(), Indexed)
            rows = rows_of(array_of(values, kind), 0 if verb == "upsert" else count, partition)
            getattr(table, verb)(rows)
            count += len(values)
            if number == len(history) - 2:
                _serve(table, service)
            check(table, statistics)
        if statistics in ("metadata table", "expressions"):
            report = table.metadata.validate()
            assert report.ok, [(found.partition, found.error, found.examples) for found in report.checks]
            assert not table.validate(deep=True).corrupt
            table.metadata.rebuild()
            check(table, statistics)


def _serve(table: Table, service: str) -> None:
    if service == "cluster":
        table.services.clustering.run(force=True)
    elif service == "compact" and table.config.is_merge_on_read:
        table.services.compaction.run(force=True)
    elif service == "rebuild" and table.config.metadata_partitions:
        table.metadata.rebuild()
