"""Every type of a column, with extreme values: the decoder gives what the server prints."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from lakehouse.platform.sources.binlog.changes import TableName
from lakehouse.platform.sources.binlog.columns import SourceColumn, arrow_type, catalog_column
from tests.support.binlog import Log
from tests.support.mysql import DatabaseServer
from tests.support.type_matrix import cases_of, differences, matrix, select_list

LENIENT = "set session sql_mode = ''"


def catalog(server: DatabaseServer, database: str, table: str = "t") -> tuple[SourceColumn, ...]:
    """Return the columns of a table as the catalog has them."""
    names = (
        "column_name, data_type, column_type, numeric_precision, numeric_scale, datetime_precision, character_set_name"
    )
    found = server.query(
        f"select {names} from information_schema.columns where table_schema = %s and table_name = %s "
        "order by ordinal_position",
        (database, table),
    )
    return tuple(catalog_column(dict(zip(names.split(", "), row, strict=True))) for row in found)


def selected(log: Log, columns: dict[str, SourceColumn]) -> dict[int, dict[str, Any]]:
    """Return the rows of a table as the server prints them, by their ids."""
    with closing(log.server.connect(log.database, conv={}, use_unicode=True)) as session, session.cursor() as cursor:
        cursor.execute(f"select {select_list(columns)} from t")
        return {int(row[0]): dict(zip(columns, row, strict=True)) for row in cursor.fetchall()}


def test_decoder_gives_what_the_server_prints_for_every_type(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    created, inserts = matrix(database_server.kind, "t")
    log.run(LENIENT, created, *inserts)
    known = catalog(database_server, log.database)
    (batch,) = log.batches(catalog={TableName(log.database, "t"): known})
    rows = selected(log, {column.name: column for column in batch.columns})
    assert batch.rows.num_rows == len(rows) == len(inserts)
    assert differences(batch.columns, batch.rows, rows) == []
    assert batch.zero_dates == {}


def test_catalog_and_log_give_every_type_the_same_arrow_type(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    created, inserts = matrix(database_server.kind, "t")
    log.run(LENIENT, created, inserts[0])
    known = catalog(database_server, log.database)
    (batch,) = log.batches(catalog={TableName(log.database, "t"): known})
    types = {column.name: arrow_type(column) for column in known}
    assert {name: batch.rows.schema.field(name).type for name in types} == types
    assert len(types) == len(cases_of(database_server.kind)) + 3
    assert [column.values for column in batch.columns] == [column.values for column in known]


@pytest.mark.parametrize("zero_dates", ["null", "text"])
def test_dates_that_no_calendar_has_are_null_and_counted_or_text(
    database_server: DatabaseServer, zero_dates: str
) -> None:
    log = Log(database_server)
    log.run(
        "set session sql_mode = 'ALLOW_INVALID_DATES'",
        "create table t (id int primary key, d date, t datetime(3), s timestamp(6) null)",
        "insert into t values (1, '0000-00-00', '0000-00-00', '0000-00-00'), (2, '2026-00-00', "
        "'2026-02-31 01:02:03.5', null), (3, '2026-02-28', '2026-02-28 23:59:59.999', '2026-02-28 23:59:59.999999')",
    )
    (batch,) = log.batches(zero_dates=zero_dates)
    rows = batch.rows.select(["d", "t", "s"]).to_pylist()
    if zero_dates == "text":
        printed_rows = selected(log, {column.name: column for column in batch.columns})
        assert rows == [{name: row[name] for name in ("d", "t", "s")} for row in printed_rows.values()]
        assert batch.zero_dates == {}
    else:
        assert rows[:2] == [{"d": None, "t": None, "s": None}] * 2
        assert [str(value) for value in rows[2].values()] == [
            "2026-02-28",
            "2026-02-28 23:59:59.999000",
            "2026-02-28 23:59:59.999999+00:00",
        ]
        assert batch.zero_dates == {"d": 2, "t": 2, "s": 1}
