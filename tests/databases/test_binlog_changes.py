"""Changes that the binlog decoder reads from real servers."""

from __future__ import annotations

from lakehouse.platform.sources.binlog.changes import SchemaEvent
from tests.support.binlog import Log, rows_of
from tests.support.mysql import DatabaseServer


def test_changes_come_in_the_order_of_the_log(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(
        "create table t (id int primary key, n bigint unsigned, s varchar(20))",
        "insert into t values (1, 5, 'one'), (2, 18446744073709551615, null)",
        "update t set s = 'uno' where id = 1",
        "update t set id = 7 where id = 2",
        "delete from t where id = 7",
        "truncate t",
        "insert into t values (3, 4, 'x')",
    )
    created, before, truncated, after = log.changes()
    assert isinstance(created, SchemaEvent) and created.kind == "create"
    assert isinstance(truncated, SchemaEvent) and truncated.kind == "truncate"
    largest = 18446744073709551615
    assert rows_of(before) == [
        ("insert", {"id": 1, "n": 5, "s": "one"}),
        ("insert", {"id": 2, "n": largest, "s": None}),
        ("update", {"id": 1, "n": 5, "s": "uno"}),
        ("delete", {"id": 2, "n": None, "s": None}),
        ("insert", {"id": 7, "n": largest, "s": None}),
        ("delete", {"id": 7, "n": largest, "s": None}),
    ]
    assert rows_of(after) == [("insert", {"id": 3, "n": 4, "s": "x"})]
    places = [created.position, *before.rows["_position"].to_pylist(), truncated.position]
    places += after.rows["_position"].to_pylist()
    assert places == sorted(set(places))
    assert log.start.order < places[0] and places[-1] <= log.end.order
