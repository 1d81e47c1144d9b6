"""Chunks and the log give the same values of every type, and chunks follow the order of the server's keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from lakehouse.platform.sources.databases.server import CONTROL, Changes, Chunk, Seen
from lakehouse.platform.sources.databases.types import hexadecimal, stored
from lakehouse.platform.sources.mysql.server import MysqlServer
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.sources.mysql_connection import mysql_access
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from tests.support.mysql import DatabaseServer

COLUMNS = (
    "id bigint unsigned primary key, ti tinyint, tu tinyint unsigned, s smallint, m mediumint unsigned, i int, "
    "bu bigint unsigned, d decimal(12,2), dw decimal(18,6), d2 decimal(65,30), d3 decimal(30,4), f float, db double, "
    "b1 bit(1), b10 bit(10), dt date, dtm datetime(6), ts timestamp(3) null, tm time(6), y year, c char(5), "
    "v varchar(20) character set latin1, tx text, e enum('x','y'), st set('a','b','c'), j json, bn binary(4), "
    "vb varbinary(10), bl blob, g geometry, dn decimal(20,0) unsigned"
)
ROWS = (
    "18446744073709551615, -128, 255, -32768, 16777215, -2147483648, 18446744073709551615, -9999999999.99, "
    "-999999999999.999999, 12345678901234567890123456789012345.123456789012345678901234567890, "
    "-12345678901234567890123456.7891, 1.2345678, 1e300, b'1', b'1000000001', '2026-01-31', "
    "'2026-01-31 01:02:03.123456', '2026-01-31 01:02:03.123', '-01:02:03.000004', 2026, 'ab', 'ü', 'Ω𝄞', 'y', 'a,c', "
    "'{\"a\": [1, null, \"x\"]}', x'00ff0000', x'0100', x'00ff', ST_GeomFromText('POINT(1 2)'), 12345678901234567890",
    "2, 1, 1, 1, 1, 1, 1, 0.01, 0.000001, 0.5, 0, 0, 0, b'0', b'1', '0000-00-00', '0000-00-00 00:00:00', "
    "'0000-00-00 00:00:00', '838:59:59', 0, '', '', '', '', '', 'null', x'00', '', x'', null, 0",
    "3" + ", null" * 30,
)


@pytest.fixture
def server(database_server: DatabaseServer) -> Iterator[MysqlServer]:
    settings = MysqlSourceSpec(database=DatabaseSettings(tables=("*.*",)))
    with closing(MysqlServer(mysql_access("mysql_default", database_server.connection), settings)) as found:
        yield found


def test_chunks_and_the_log_give_equal_values_of_every_type(
    database_server: DatabaseServer, server: MysqlServer
) -> None:
    name = f"{database_server.database()}.t"
    database_server.run(f"create table {name} ({COLUMNS})")
    start = server.low_watermark("t")
    database_server.run("set sql_mode = ''", *(f"insert into {name} values ({row})" for row in ROWS))
    table = server.describe([name])[name]
    chunks = [rows for one in server.chunks(table, table.key, None, rows=2, most=9) for rows in read(server, name, one)]
    log = [one.rows for one in server.reads.log(start, server.log_end(), [table]) if isinstance(one, Changes)]
    changes = pa.concat_tables(log)
    plain = changes.drop_columns([column for column in CONTROL if column in changes.column_names])
    seen, *whole = server.reads.whole(table)
    assert isinstance(seen, Seen)
    from_chunks = stored(pa.Table.from_batches(chunks), table.key).sort_by("id")
    from_whole = stored(pa.Table.from_batches([one for one in whole if isinstance(one, pa.RecordBatch)]), table.key)
    from_whole = from_whole.sort_by("id")
    from_log = stored(plain, table.key).sort_by("id")
    assert from_chunks.schema == from_log.schema
    for column in from_chunks.column_names:
        assert from_chunks.column(column).to_pylist() == from_log.column(column).to_pylist(), column
        assert from_chunks.column(column).to_pylist() == from_whole.column(column).to_pylist(), column
    assert from_chunks.num_rows == len(ROWS)
    assert not [*server.reads.log(start, server.log_end(), [replace(table, seen=seen)])][:-1]


def test_chunks_of_texts_follow_the_collation_and_have_each_row_once(
    database_server: DatabaseServer, server: MysqlServer
) -> None:
    name = f"{database_server.database()}.t"
    database_server.run(f"create table {name} (a varchar(5), b varbinary(3), c int, primary key (a, b, c))")
    rows = [(f"{'aBäZ'[n % 4]}{n % 3}", bytes([n % 2]), n) for n in range(60)]
    values = ", ".join(f"('{a}', x'{b.hex()}', {c})" for a, b, c in rows)
    database_server.run(f"insert into {name} values {values}")
    table = server.describe([name])[name]
    first = server.chunks(table, table.key, None, rows=7, most=4)
    rest = server.chunks(table, table.key, first[-1].upto, rows=7, most=99)
    assert [one.upto is None for one in (*first, *rest)].count(True) == 1
    found = [row for one in (*first, *rest) for batch in read(server, name, one) for row in batch.to_pylist()]
    assert sorted(row["c"] for row in found) == list(range(60))


def test_bytes_of_keys_become_hexadecimal_digits() -> None:
    values = [b"\x00\xff", b"", None, b"\x1a"]
    whole = pa.chunked_array([pa.array([b"zz", *values], pa.binary()).slice(1)])
    assert hexadecimal(whole).to_pylist() == ["00FF", "", None, "1A"]


def read(server: MysqlServer, name: str, chunk: Chunk) -> list[pa.RecordBatch]:
    """Return the rows of a chunk."""
    table = server.describe([name])[name]
    return list(server.reads.chunk(table, table.key, chunk))
