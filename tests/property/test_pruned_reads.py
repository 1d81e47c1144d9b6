"""A pruned read returns the rows of a read of all files, for any writes, rows and conditions."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.operations.read import metadata_ranges
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.planning.predicate import to_arrow
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, StartsWith
from tests.support.tables import examples

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("ts", pa.int64()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
    ]
)
ids = st.integers(0, 30).map(lambda number: f"k{number}")
values: dict[str, st.SearchStrategy[Any]] = {
    "id": ids,
    "p": st.sampled_from(["a", "b", "a/b", ""]),
    "n": st.integers(-5, 5),
    "f": st.sampled_from([math.nan, 0.0, -0.0, 1.5, -2.0, math.inf]),
    "s": st.sampled_from(["", "a", "ab", "b", "x" * 3000, "𐐷", "\uffff", "~"]),
    "ts": st.integers(0, 9),
    "place.city": st.sampled_from(["x", "y", "z"]),
    "place.zip": st.integers(0, 4),
}


@st.composite
def rows(draw: st.DrawFn) -> pa.Table:
    found = []
    for key in draw(st.lists(ids, unique=True, min_size=1, max_size=6)):
        # A key stays in its partition, as with an index that is not global.
        row = {name: draw(st.none() | values[name]) for name in ("n", "f", "s")}
        city = draw(st.none() | st.fixed_dictionaries({"city": values["place.city"], "zip": values["place.zip"]}))
        partition = ("a", "b", "a/b", None)[int(key[1:]) % 4]
        found.append({"id": key, "p": partition, "ts": draw(values["ts"]), "place": city, **row})
    return pa.Table.from_pylist(found, schema=SCHEMA)


steps = st.lists(
    st.tuples(st.sampled_from(["upsert", "upsert", "upsert", "delete", "compact", "clean", "cluster"]), rows()),
    min_size=1,
    max_size=5,
)


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Predicate:
    kind = draw(st.integers(0, 7 if depth else 4))
    if kind >= 5:
        parts = draw(st.lists(predicates(depth=depth - 1), min_size=1, max_size=2).map(tuple))
        return (And(parts), Or(parts), Not(parts[0]))[kind - 5]
    column = draw(st.sampled_from(sorted(values)))
    if kind == 0:
        return IsNull(column)
    if kind == 1:
        return In(column, draw(st.lists(values[column], min_size=1, max_size=3).map(tuple)))
    if kind == 2 and column in ("id", "s", "p", "place.city"):
        return StartsWith(column, draw(st.sampled_from(["", "a", "k1", "x", "𐐷", "\uffff"])))
    literal = draw(values[column])
    return Comparison(column, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), literal)


def planned(table: Table, where: Predicate) -> Scan:
    found = plan_read(table.refresh(), ScanRequest(where=where))
    assert isinstance(found, Scan)
    return found


def rows_of(scan: Scan) -> pa.Table:
    return pa.Table.from_batches(scan.batches(), scan.schema)


def counted(found: pa.Table) -> Counter[str]:
    return Counter(map(repr, found.to_pylist()))


#: Where a read finds the ranges of columns in files.
STATISTICS = ["by key", "of the whole table", "of the whole table, by name", "without metadata table"]


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@given(history=steps, conditions=st.lists(predicates(), min_size=1, max_size=8))
@examples(12)
def test_pruned_read_equals_the_filtered_read(
    table_type: str, statistics: str, history: list[tuple[str, pa.Table]], conditions: list[Predicate]
) -> None:
    metadata = statistics != "without metadata table"
    table = Table.create(
        "memory://t",
        name="t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        schema=SCHEMA,
        table_type=table_type,
        options={"hoodie.metadata.enable": str(metadata).lower(), "hoodie.clean.commits.retained": "1"},
        env=Env(storage=MemoryStorage()),
    )
    for verb, batch in history:
        if verb == "upsert":
            table.upsert(batch)
        elif verb == "delete":
            table.delete(batch.select(["id", "p", "ts"]))
        elif verb == "compact" and table_type == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
        elif verb == "clean":
            table.services.clean.run(force=True)
        elif verb == "cluster":
            table.services.clustering.run(force=True)
    whole = table.scan().to_arrow()
    with pytest.MonkeyPatch.context() as patch:
        if statistics.startswith("of the whole table"):
            patch.setattr(metadata_ranges, "_MOST_KEYS", 0)
            patch.setattr(metadata_ranges, "_MOST_PARTITIONS", 0)
        if statistics.endswith("by name"):
            # As if numbers did not tell the names of files apart.
            patch.setattr(metadata_ranges, "places_of_names", lambda names, known: None)
        for where in conditions:
            scan = planned(table, where)
            rows = rows_of(scan)
            assert counted(rows) == counted(whole.filter(to_arrow(where, whole.schema))), where
            in_threads = pa.Table.from_batches(scan.batches(threads=3), scan.schema)
            assert repr(in_threads.to_pylist()) == repr(rows.to_pylist()), "threads keep the order"
            assert counted(pa.Table.from_batches(scan.batches(threads=3, ordered=False), scan.schema)) == counted(rows)
    files = table.scan().explain().step("files").reason
    assert files.startswith("the metadata table") is metadata
