"""Statements in the log of MySQL and MariaDB are read in the mode of the session that wrote them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakehouse.errors import SnapshotNeededError
from lakehouse.platform.sources.binlog.changes import SchemaEvent, TableName
from lakehouse.platform.sources.binlog.statements import ANSI_QUOTES, DDL, NO_BACKSLASH_ESCAPES, UNKNOWN, classify
from tests.support.binlog import Log
from tests.support.mariadb import mariadb_server
from tests.support.mysql import DatabaseServer

CREATE = "create table t (id int primary key, n int)"


def events(log: Log) -> list[tuple[str, str]]:
    """Return what statements do to tables, without their creation."""
    found = [one for one in log.changes() if isinstance(one, SchemaEvent) and one.kind != "create"]
    return [(one.kind, one.table.table) for one in found]


def test_names_in_double_quotes_are_read_in_the_mode_of_their_session(database_server: DatabaseServer) -> None:
    """estuary/connectors#982, debezium/debezium#7721, zendesk/maxwell#831, pingcap/tiflow#9876."""
    log = Log(database_server)
    log.run(
        CREATE,
        "create table u (id int primary key)",
        "set sql_mode = 'ANSI_QUOTES'",
        'truncate "t"',
        'rename table "t" to "v", "u" to "t"',
        'alter table "t" add "c" int not null',
        f'truncate "{log.database}"."t"',
        'drop table "t", "v"',
    )
    assert events(log) == [
        ("truncate", "t"),
        ("rename", "t"),
        ("rename", "u"),
        ("alter", "t"),
        ("truncate", "t"),
        ("drop", "t"),
        ("drop", "v"),
    ]


def test_texts_with_backslashes_and_comments_hide_no_statement(database_server: DatabaseServer) -> None:
    """dbtrail/dbtrail#1664, dbtrail/dbtrail#1673."""
    log = Log(database_server)
    log.run(
        CREATE,
        "set sql_mode = 'NO_BACKSLASH_ESCAPES'",
        r"alter table t comment = 'C:\', rename to v",
        "set sql_mode = ''",
        r"alter table v comment = 'it\'s', rename to t",
        "--\ntruncate t",
        "/*Moved by an operator*/ truncate /* now */ t",
        "rename /* gh-ost */ table t to v",
        "# note\ntruncate table v",
    )
    assert events(log) == [
        ("rename", "t"),
        ("rename", "v"),
        ("truncate", "t"),
        ("truncate", "t"),
        ("rename", "t"),
        ("truncate", "v"),
    ]


def test_statement_with_variables_is_read_as_the_statement_behind_them(mariadb: DatabaseServer) -> None:
    """estuary/connectors#982: MariaDB logs `SET STATEMENT ... FOR` as it was written."""
    log = Log(mariadb)
    log.run(
        CREATE,
        "set statement lock_wait_timeout = 9 for truncate table t",
        "execute immediate 'truncate table t'",
        "set sql_mode = 'ORACLE'",
        'truncate table "t"',
    )
    assert events(log) == [("truncate", "t")] * 3


@pytest.fixture(scope="module")
def folding() -> Iterator[DatabaseServer]:
    with mariadb_server(lower_case_table_names="1") as server:
        yield server


def test_names_are_read_in_any_case_if_the_server_stores_them_in_lower_case(folding: DatabaseServer) -> None:
    """apache/inlong#7825: TRUNCATE has to be seen."""
    log = Log(folding)
    log.run(CREATE, "Truncate Table T", f"truncate {log.database.upper()}.T")
    assert events(log) == [("truncate", "t")] * 2


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('truncate "t"', 0),
        ("flashback table t to before drop", 0),
        ("drop table `t", 0),
        ("alter table t comment 'it\\', rename to v", 0),
        ("drop table t\ufffd, t", 0),
    ],
)
def test_statement_that_is_not_understood_names_the_tables_that_it_may_concern(text: str, mode: int) -> None:
    """dbtrail/dbtrail#1664: an unrecognized statement must not be skipped."""
    found = classify(text, "shop", mode)
    assert found.kind == UNKNOWN
    assert TableName("shop", "t") in found.names
    assert classify(r"alter table t comment 'it\', rename to v", "shop", NO_BACKSLASH_ESCAPES).kind == DDL
    assert classify('truncate "t"', "shop", ANSI_QUOTES).kind == DDL


def test_statement_that_is_not_understood_ends_the_read_of_the_tables_that_it_names(
    mariadb: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MaterializeInc/materialize#36961: a statement on a table in a form that the reader does not know."""
    log = Log(mariadb)
    log.run(CREATE, "create table u (id int primary key)")
    monkeypatch.setattr("lakehouse.platform.sources.binlog.statements._HARMLESS_VERBS", ())
    log.run("analyze table t")
    with pytest.raises(
        SnapshotNeededError, match=r"not understood and may concern table shop_\d+\.t: 'analyze"
    ) as raised:
        log.changes(wants=lambda name: name == TableName(log.database, "t"))
    assert raised.value.facts["tables"] == (f"{log.database}.t",)
    assert log.batches(wants=lambda name: name == TableName(log.database, "u")) == []
