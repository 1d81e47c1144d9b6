"""Texts of MySQL and MariaDB are the same in snapshot and log, in every character set of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import UnsupportedError
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.sources.binlog import charsets
from lakehouse.platform.sources.binlog.changes import TableName
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.mysql.projection import projected
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.binlog import Log
from tests.support.mysql import DatabaseServer

WIDE = ("utf8mb3", "utf8", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32")
#: Characters of a row.
CODE_POINTS, PACKED = 4096, 500


def sequences(charset: str, longest: int) -> Iterator[bytes]:
    """Yield byte sequences that can be a character."""
    yield from (bytes([byte]) for byte in range(1, 256))
    if longest > 1:
        yield from (bytes([first, last]) for first in range(0x80, 256) for last in range(0x30, 256))
    if longest == 3:
        yield from (bytes([0x8F, middle, last]) for middle in range(0xA1, 255) for last in range(0xA1, 255))
    if charset == "gb18030":
        leads = [(first, digit) for first in (*range(0x81, 0x85), *range(0x90, 0xE4)) for digit in (0x30, 0x35, 0x39)]
        yield from (bytes([*lead, third, 0x30 + third % 10]) for lead in leads for third in range(0x81, 0xFF))


def hexadecimal(rows: list[tuple[int, bytes]]) -> str:
    return ", ".join(f"({number}, x'{data.hex()}')" for number, data in rows)


def fill(log: Log, charset: str, longest: int) -> None:
    """Create a table `<charset>_t` whose rows have every character that the server stores."""
    log.run(f"create table {charset}_t (n int primary key, v mediumtext character set {charset})")
    packed = 1
    if charset in WIDE:
        last = 0x10000 if charset in WIDE[:2] or charset == "ucs2" else 0x110000
        starts = range(0, last, CODE_POINTS)
        rows = [
            (first, "".join(map(chr, range(first, first + CODE_POINTS))).encode("utf-32-be", "ignore"))
            for first in starts
        ]
        source = "convert(b using utf32)"
    else:
        rows, packed = list(enumerate(sequences(charset, longest))), PACKED
        # Sequences that are no character for the server are null, or an empty text.
        source = f"group_concat(convert(b using {charset}) order by n separator '|')"
    log.run(
        "set sql_mode = ''",
        "set group_concat_max_len = 1000000",
        "set sql_log_bin = 0",
        f"create table {charset}_q (n int primary key, b mediumblob)",
        f"insert into {charset}_q values {hexadecimal(rows)}",
        "set sql_log_bin = 1",
        f"insert into {charset}_t select min(n), {source} from {charset}_q group by n div {packed}",
    )


def test_log_has_the_texts_of_the_snapshot_in_every_character_set(database_server: DatabaseServer) -> None:
    """estuary/connectors#1951, PeerDB-io/peerdb#4436, apache/flink-cdc#1166, ClickHouse/ClickHouse#21815."""
    log = Log(database_server)
    longest_of = dict(
        database_server.query(
            "select character_set_name, maxlen from information_schema.character_sets "
            "where character_set_name not in ('binary', 'utf8') order by 1"
        )
    )
    assert len(longest_of) >= 39
    for charset, longest in longest_of.items():
        fill(log, charset, longest)
    batches = {batch.table: batch.rows.select(["n", "v"]).to_pylist() for batch in log.batches(batch_bytes=1 << 40)}
    for charset in longest_of:
        with closing(database_server.connect(log.database)) as session, session.cursor() as cursor:
            column = SourceColumn(name="v", type="text", charset=charset)
            cursor.execute(f"select n, {projected(column)} from {charset}_t")
            snapshot = dict(cursor.fetchall())
        rows = {row["n"]: row["v"] for row in batches[TableName(log.database, f"{charset}_t")]}
        different: list[Any] = [
            (number, rows[number], text) for number, text in snapshot.items() if rows[number] != text
        ]
        assert (charset, different[:5]) == (charset, [])
        assert len(snapshot) == len(rows)


@pytest.mark.parametrize("charset", ["ucs2", "utf16", "utf32", "ascii", "tis620"])
def test_bytes_without_a_character_are_the_same_in_log_and_snapshot(
    database_server: DatabaseServer, charset: str
) -> None:
    """debezium/debezium#97: bytes of tables that older releases did not check."""
    log = Log(database_server)
    log.run("set sql_mode = ''", f"create table t (n int primary key, v varchar(9) character set {charset})")
    for number, data in enumerate(("d800", "dc000041", "d83dde00", "80", "a0")):
        log.run("set sql_mode = ''", f"insert ignore into t values ({number}, x'{data}')")
    rows = {row["n"]: row["v"] for batch in log.batches() for row in batch.rows.to_pylist()}
    with closing(database_server.connect(log.database)) as session, session.cursor() as cursor:
        column = SourceColumn(name="v", type="varchar", charset=charset)
        cursor.execute(f"select n, {projected(column)} from t")
        assert rows == dict(cursor.fetchall())


def test_table_that_the_log_cannot_decode_is_refused_before_its_snapshot(
    mariadb: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ClickHouse/ClickHouse#21815: a character set that this package does not have, as a later server may add."""
    monkeypatch.delitem(charsets._SEVERAL, "gbk")
    database = mariadb.database()
    mariadb.run("create table t (n int primary key, v text character set gbk)", database=database)
    value = {
        "table": "t",
        "location": str(tmp_path / "t"),
        "record_key": ["n"],
        "ingest": {"source": "mysql", "tables": f"{database}.t"},
    }
    spec = parse_spec(json.dumps(value), source="t.yaml")
    command = IngestCommand(table="t")
    with pytest.raises(UnsupportedError, match=r"shop_\d+\.t cannot be read: column 'v' .*'gbk'.*ALTER TABLE"):
        check_ingest(spec, command, environ=mariadb.connection, storage_options={})
    mariadb.run("alter table t modify v text character set utf8mb4", database=database)
    (note,) = check_ingest(spec, command, environ=mariadb.connection, storage_options={})
    assert note.endswith("the run creates it")
