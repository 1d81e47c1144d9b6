"""Queries with a bound return the same rows after later commits, and stay unbounded until then."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.read.bounded_query import BoundedQuery, query_schema, with_bound
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import (
    EARLIEST,
    SNAPSHOT,
    Changes,
    CompletedUpTo,
    EventTimeTravel,
    Incremental,
    Query,
    ReadOptimized,
    ScanRequest,
    TimeTravel,
)

QUERIES = {
    "snapshot": SNAPSHOT,
    "read optimized": ReadOptimized(),
    "incremental": Incremental(EARLIEST),
    "last commit": Incremental(),
    "changes": Changes(EARLIEST),
    "last change": Changes(),
    "event time": EventTimeTravel("2026-01-02"),
    "event time, read optimized": ReadOptimized(EventTimeTravel("2026-01-02")),
}


def _upsert(table: Table, *rows: tuple[str, str, int]) -> None:
    ids, times, numbers = zip(*rows, strict=True)
    at = pa.array(times).cast(pa.timestamp("us"))
    table.upsert(pa.table({"id": ids, "at": at, "n": pa.array(numbers, pa.int64())}))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    options = {"hoodie.payload.event.time.field": "at", "lakehouse.event_time.lateness": "1h"}
    made = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        table_type="MERGE_ON_READ",
        cdc="DATA_BEFORE_AFTER",
        options=options,
    )
    _upsert(made, ("a", "2026-01-01", 1), ("b", "2026-01-01", 2))
    _upsert(made, ("b", "2026-01-03", 3))
    return made


def _rows(table: Table, query: Query) -> list[str]:
    batches = plan_read(table.refresh(), ScanRequest(query=query)).batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(str({name: value for name, value in row.items() if name != "_hoodie_file_name"}) for row in rows)


def _bounded(table: Table, query: Query) -> BoundedQuery:
    return with_bound(table.refresh(), query)


@pytest.mark.parametrize("name", QUERIES)
def test_bounded_query_returns_the_same_rows_after_commits_and_a_compaction(table: Table, name: str) -> None:
    query = QUERIES[name]
    before = _rows(table, query)
    bounded = _bounded(table, query)
    assert before, "a comparison of no rows would hold for every bound"
    assert _rows(table, bounded.on(table.refresh())) == before
    # The late event changes the version of the event time.
    _upsert(table, ("a", "2026-01-01", 7), ("c", "2026-01-01", 8))
    table.services.compaction.run(force=True)
    assert _rows(table, bounded.on(table.refresh())) == before
    assert _rows(table, query) != before


def test_query_has_no_bound_while_no_write_completes(table: Table) -> None:
    bounded = _bounded(table, SNAPSHOT)
    assert bounded.on(table.refresh()) == SNAPSHOT, "a bound would exclude indexes"
    _upsert(table, ("c", "2026-01-04", 4))
    assert bounded.on(table.refresh()) == CompletedUpTo(bounded.newest)


@pytest.mark.parametrize("name", ["snapshot", "incremental", "last commit"])
def test_bounded_query_of_a_table_without_commits_returns_no_rows(tmp_path: Path, name: str) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    bounded = _bounded(table, QUERIES[name])
    _upsert(table, ("a", "2026-01-01", 1))
    assert _rows(table, bounded.on(table.refresh())) == []


def test_time_travel_has_the_columns_of_its_time(table: Table) -> None:
    first = table.commits()[-1][0]
    table.upsert(pa.table({"id": ["d"], "at": pa.array([0], pa.timestamp("us")), "n": [1], "new": ["x"]}))
    for query in (TimeTravel(first.requested), ReadOptimized(TimeTravel(first.requested))):
        schema = query_schema(table.refresh(), _bounded(table, query).query)
        assert schema is not None and schema.names == ["id", "at", "n"]
    newest = query_schema(table.refresh(), SNAPSHOT)
    assert newest is not None and newest.names == ["id", "at", "n", "new"]
