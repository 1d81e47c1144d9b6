"""Numbers of tables as `lakehouse services health` prints them, in the form of the rows of the page Fleet."""

from __future__ import annotations

from lakehouse.spec.contracts.decisions import TableHealth, TablesHealth
from lakehouse.spec.contracts.read_numbers import ReadTables

HEALTH = TableHealth(
    table="a.b", freshness_lag_s=2.5, file_groups=4, base_bytes=10, log_bytes=3, small_files=1, instants=7
)


def test_numbers_have_the_time_of_the_newest_commit_and_errors_have_none() -> None:
    health = TablesHealth(tables=(HEALTH, TableHealth(table="a.c", error="gone"), TableHealth(table="a.d", instants=0)))
    whole, broken, empty = ReadTables.of(health, 10_000).tables
    assert (whole.numbers["last_commit_ms"], whole.numbers["file_groups"], whole.error) == (7_500, 4, None)
    assert (broken.numbers, broken.error) == ({}, "gone")
    assert (empty.numbers, empty.error) == ({}, None)


def test_table_with_instants_and_without_writes_has_no_newest_commit() -> None:
    (found,) = ReadTables.of(TablesHealth(tables=(TableHealth(table="a.b", instants=1),)), 10_000).tables
    assert found.numbers["last_commit_ms"] is None
    assert found.numbers["instants"] == 1
