"""Records the events of `tests/golden/binlog` from servers: `python -m tests.support.binlog_recorder`."""

from __future__ import annotations

from contextlib import closing

from lakehouse.platform.sources.binlog.columns import catalog_column
from lakehouse.platform.sources.binlog.dump import LogRead, _prepared, open_dump
from tests.support.binlog import RECORDINGS, Log, Recording
from tests.support.mariadb import mariadb_server
from tests.support.mysql import DatabaseServer, mysql_server
from tests.support.type_matrix import cases_of, select_list

_CATALOG = (
    "column_name, data_type, column_type, numeric_precision, numeric_scale, datetime_precision, character_set_name"
)


def record(server: DatabaseServer) -> Recording:
    """Return the events of a table with all types and of a table whose key changes."""
    cases = [case for case in cases_of(server.kind) if "repeat(" not in case.values[0]]
    names = ", ".join(f"c{n}" for n in range(len(cases)))
    columns = ", ".join(f"c{n} {case.type}" for n, case in enumerate(cases))
    first, last = (", ".join(_short(case.values, place) for case in cases) for place in (0, -1))
    server.run("create database recorded")
    start = Log(server).now()
    server.run(
        "set session sql_mode = ''",
        f"create table t (id int primary key, {columns})",
        f"insert into t (id, {names}) values (1, {first})",
        "insert into t (id) values (2)",
        f"insert into t (id, {names}) values (3, {last}), (4, {first})",
        "begin",
        "update t set c0 = 7 where id < 4",
        "delete from t where id = 4",
        "commit",
        "create table k (a int, b varchar(20), c text, primary key (a, b)) comment 'two key columns'",
        "insert into k values (1, 'x', 'one'), (2, 'y', null), (3, 'z', 'three')",
        "update k set a = a + 10 where a < 3",
        "alter table k add column d datetime(6) null after a",
        "update k set d = '2026-01-02 03:04:05.678901' where a = 3",
        "truncate table k",
        "insert into k values (5, null, 'v', 'five')",
        "rename table k to l",
        "drop table l",
        *(
            ["set global log_bin_compress = 1, global log_bin_compress_min_len = 10"]
            if server.kind == "mariadb"
            else []
        ),
        f"insert into t (id, {names}) values (5, {first})",
        "update t set c0 = 8 where id = 5",
        "begin",
        "insert into t (id) values (6)",
        "delete from t where id = 6",
        "commit",
        database="recorded",
    )
    with closing(server.connect()) as session:
        read = LogRead(start=start, server_id=77, wants=lambda name: True)
        collations = _prepared(session, read)
        events = list(open_dump(session, read))
        session._force_close()
    with closing(server.connect("recorded", conv={})) as session, session.cursor() as cursor:
        cursor.execute(
            f"select {_CATALOG} from information_schema.columns where table_schema = 'recorded' and table_name = 't' "
            "order by ordinal_position"
        )
        rows = [dict(zip(_CATALOG.split(", "), row, strict=True)) for row in cursor.fetchall()]
        known = tuple(catalog_column(row) for row in rows)
        cursor.execute(f"select {select_list({column.name: column for column in known})} from t order by id")
        printed = [dict(zip([column.name for column in known], row, strict=True)) for row in cursor.fetchall()]
    return Recording(start=start, collations=collations, columns=known, events=events, rows=printed)


def _short(values: tuple[str, ...], place: int) -> str:
    short = [value for value in values if "70000" not in value]
    return short[place]


def main() -> None:
    """Write the recordings of both servers."""
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    for kind, run in (("mysql", mysql_server), ("mariadb", mariadb_server)):
        with run() as server:
            record(server).save(RECORDINGS / f"{kind}.json.gz")


if __name__ == "__main__":
    main()
