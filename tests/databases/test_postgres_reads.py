"""Chunks and the log have the values that the server prints; chunks follow its order; reads name what is wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from lakehouse.errors import CorruptLogError, LakehouseError, RetryableError, SnapshotNeededError, UserError
from lakehouse.platform.sources.databases.server import (
    CONTROL,
    Changes,
    Chunk,
    SchemaEvent,
    Seen,
    SourceTable,
    TableReads,
)
from lakehouse.platform.sources.postgres.server import PostgresServer
from lakehouse.platform.sources.postgres.stream import SlotStream
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.sources.postgres_connection import postgres_access
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from tests.support.pg_types import MADE, TYPES, expected, matrix, plain, printed
from tests.support.postgres import READER, PgDatabase, PgServer
from tests.support.postgresql import HOST
from tests.support.proxy import proxy_to
from tests.support.waiting import until

SETTINGS = PostgresSourceSpec(database=DatabaseSettings(tables=("*.*",)))


@pytest.fixture
def database(postgres: PgServer) -> PgDatabase:
    return postgres.database()


@pytest.fixture
def server(database: PgDatabase) -> Iterator[PostgresServer]:
    with closing(opened(database)) as found:
        yield found


def opened(database: PgDatabase, name: str = "") -> PostgresServer:
    """Return a server whose slot has the name of the database."""
    access = postgres_access("postgres_default", database.connection)
    return PostgresServer(access, SETTINGS, name or database.name)


def prepared(server: PostgresServer, *names: str) -> list[SourceTable]:
    """Publish tables and create the slot; return the tables."""
    tables = [*server.describe(names).values()]
    server.prepare(tables, resumes=False)
    return tables


def test_chunks_and_the_log_have_the_values_that_the_server_prints_of_every_type(
    database: PgDatabase, server: PostgresServer
) -> None:
    created, inserts = matrix("t")
    database.sql(*MADE, created)
    (table,) = prepared(server, "public.t")
    start = server.low_watermark("public.t")
    database.run(*inserts)
    chunks = [rows for one in server.chunks(table, ("id",), None, rows=20, most=99) for rows in chunk(server, one)]
    (log,) = [one.rows for one in server.reads.log(start, server.log_end(), [table]) if isinstance(one, Changes)]
    texts = database.query(printed("t"))
    assert log.num_rows == len(texts) == len(inserts)
    changes = log.drop_columns([name for name in CONTROL if name in log.column_names])
    for number, kind in enumerate(TYPES, 1):
        column = table.schema.names[number]
        wanted = [expected(table.schema.field(column).type, row[number]) for row in texts]
        for rows in (pa.Table.from_batches(chunks), changes):
            assert [plain(value) for value in rows.sort_by("id")[column].to_pylist()] == wanted, kind
            assert rows.schema == table.schema


def test_log_has_each_kind_of_change_in_order_and_the_same_from_any_start(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql(
        "create table t (a int, b text, c text, primary key (a, b))",
        "create table other (id int primary key)",
    )
    tables = prepared(server, "public.t")
    start = server.low_watermark("public.t")
    big = "repeat('0123456789', 40000)"
    database.sql(
        "alter table t alter c set storage external",
        f"insert into t values (1, 'x', {big}), (2, 'y', null), (3, 'z', '')",
        "insert into other values (1)",
        "update t set b = 'xx' where a = 1",
        "update t set a = 1 where a = 1",
    )
    middle = server.log_end()
    database.sql(
        "delete from t where a = 2",
        "begin; savepoint s; insert into t values (7, '', ''); rollback to s; insert into t values (8, '', ''); commit",
        "begin; insert into t values (9, '', ''); rollback",
        "truncate t, other",
        "insert into t select n, 'm', '' from generate_series(1, 3) n",
    )
    end = server.log_end()
    found = [*server.reads.log(start, end, tables)]
    events = [one for one in found if isinstance(one, SchemaEvent)]
    rows = pa.concat_tables([one.rows for one in found if isinstance(one, Changes)])
    short = [(row["_change"], row["a"], row["b"], len(row["c"] or "")) for row in rows.to_pylist()]
    assert short == [
        ("insert", 1, "x", 400_000),
        ("insert", 2, "y", 0),
        ("insert", 3, "z", 0),
        # The key is changed, and the value that is stored out of line is not sent.
        ("delete", 1, "x", 0),
        ("insert", 1, "xx", 0),
        ("update", 1, "xx", 0),
        ("delete", 2, "y", 0),
        ("insert", 8, "", 0),
        *(("insert", n, "m", 0) for n in (1, 2, 3)),
    ]
    lacking = rows["_unavailable"].to_pylist()
    assert [place for place, names in enumerate(lacking) if names] == [4, 5] and lacking[4] == ["c"]
    positions = rows["_position"].to_pylist()
    assert positions == sorted(set(positions))
    assert [(one.kind, one.table) for one in events] == [("truncate", "public.t")]
    assert positions[7] < events[0].position < positions[8]
    times = rows["_committed_us"].to_pylist()
    assert times == sorted(times) and 0 < times[0].timestamp() * 1000 - start.time_ms < 60_000
    again = [one.rows for one in server.reads.log(middle, end, tables) if isinstance(one, Changes)]
    assert pa.concat_tables(again)["_position"].to_pylist() == positions[6:]
    assert next(iter(server.reads.log(end, end, tables))).position == end  # type: ignore[union-attr]


def test_log_follows_columns_and_a_replica_identity_of_all_columns(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql("create table t (id int primary key, a int, gone text)", "alter table t replica identity full")
    tables = prepared(server, "public.t")
    assert tables[0].identity is None
    start = server.low_watermark("public.t")
    database.sql(
        "insert into t values (1, 1, repeat(md5('x'), 9999))",
        "alter table t alter gone set storage external",
        "insert into t values (2, 2, repeat(md5('x'), 9999))",
        "update t set a = 3 where id = 2",
        "update t set id = 4 where id = 2",
        "alter table t drop column gone",
        "alter table t rename a to b",
        "alter table t add column c numeric(5, 2) default 1.5",
        "update t set b = 5 where id = 4",
        "delete from t where id = 1",
    )
    found = [*server.reads.log(start, server.log_end(), tables)]
    first, second = (one.rows for one in found if isinstance(one, Changes))
    assert first.column_names[:3] == ["id", "a", "gone"] and second.column_names[:3] == ["id", "b", "c"]
    assert "_unavailable" not in first.column_names
    assert {len(text) for text in first["gone"].to_pylist()} == {32 * 9999}
    rows = [(row["_change"], row["id"], row["b"], str(row["c"])) for row in second.to_pylist()]
    assert rows == [("update", 4, 5, "1.50"), ("delete", 1, 1, "1.50")]
    (event,) = [one for one in found if isinstance(one, SchemaEvent)]
    assert event.kind == "alter"
    assert first["_position"].to_pylist()[-1] < event.position < second["_position"].to_pylist()[0]


def test_keys_that_are_stored_out_of_line_and_keys_of_other_columns_are_complete(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql(
        "create table t (k text primary key, n int, filler text)",
        "alter table t alter k set storage external, alter filler set storage plain",
        "create table u (id int, code text not null unique, n int)",
        "alter table u replica identity using index u_code_key",
        "create table v (id int primary key deferrable, n int)",
        "create table w (id int primary key, n int)",
        "alter table w replica identity nothing",
    )
    described = server.describe(["public.t", "public.u", "public.v", "public.w"])
    keys = {name: (one.key, one.identity) for name, one in described.items()}
    assert keys["public.u"] == (("code",), ("code",))
    # Two rows may have one key within a transaction.
    assert keys["public.v"] == ((), ())
    assert keys["public.w"] == (("id",), ())
    tables = prepared(server, "public.t", "public.u")
    start = server.low_watermark("public.t")
    database.sql(
        "insert into t values (repeat('k', 2600), 1, repeat('f', 2000))",
        "update t set n = 2",
        "insert into u values (1, 'a', 1)",
        "update u set code = 'b'",
        "delete from u",
    )
    found = [one for one in server.reads.log(start, server.log_end(), tables) if isinstance(one, Changes)]
    by_name = {one.table: rows_of(one) for one in found}
    assert [(kind, len(str(key)), n) for kind, key, n, _ in by_name["public.t"]] == [
        ("insert", 2600, 1),
        ("update", 2600, 2),
    ]
    assert by_name["public.u"] == [
        ("insert", 1, "a", 1),
        ("delete", None, "a", None),
        ("insert", 1, "b", 1),
        ("delete", None, "b", None),
    ]


def test_partitions_are_rows_of_their_table(database: PgDatabase, server: PostgresServer) -> None:
    database.sql(
        "create table t (id int, day int, n int, primary key (id, day)) partition by range (day)",
        "create table t_1 partition of t for values from (0) to (10)",
        "create table t_2 partition of t for values from (10) to (20)",
        "create table parent (id int primary key)",
        "create table child (n int) inherits (parent)",
        "insert into parent values (1)",
        "insert into child values (2, 2)",
    )
    assert set(server.tables()) == {"public.t", "public.parent", "public.child"}
    tables = prepared(server, "public.t", "public.parent")
    assert [rows.to_pylist() for rows in chunk(server, Chunk(), "public.parent")] == [[{"id": 1}]]
    server.describe(["public.t", "public.parent"])
    start = server.low_watermark("public.t")
    database.sql("insert into t values (1, 5, 1), (2, 15, 2)", "update t set day = 16 where id = 1")
    (log,) = [one for one in server.reads.log(start, server.log_end(), tables) if isinstance(one, Changes)]
    assert rows_of(log) == [
        ("insert", 1, 5, 1),
        ("insert", 2, 15, 2),
        ("delete", 1, 5, None),
        ("insert", 1, 16, 1),
    ]
    rows = [row for one in chunk(server, Chunk(), "public.t") for row in one.to_pylist()]
    assert sorted(row["id"] for row in rows) == [1, 2]


def test_chunks_of_any_key_have_each_row_once(database: PgDatabase, server: PostgresServer) -> None:
    database.sql(
        "create table t (a varchar(5), b bytea, c inet, d timestamptz, primary key (a, b, c, d))",
        "insert into t select (array['a', 'B', 'ä%', 'o''b', E'\\\\'])[n % 5 + 1] || n % 3, decode(to_hex(16 + n % 2), "
        "'hex'), ('10.0.0.' || n)::inet, timestamptz '2026-01-01' + n * interval '1 s' from generate_series(0, 59) n",
    )
    (table,) = prepared(server, "public.t")
    first = server.chunks(table, table.key, None, rows=7, most=4)
    rest = server.chunks(table, table.key, first[-1].upto, rows=7, most=99)
    assert len(first) == 4 and [one.upto is None for one in (*first, *rest)].count(True) == 1
    found = [row for one in (*first, *rest) for rows in chunk(server, one) for row in rows.to_pylist()]
    assert sorted(row["c"] for row in found) == sorted(f"10.0.0.{n}" for n in range(60))
    # Keys as the texts of their stored values: bytes are hexadecimal digits.
    keys = [(row["a"], row["b"].hex().upper(), row["c"], str(row["d"])) for row in found[:3]]
    assert [row for rows in chunk(server, Chunk(keys=tuple(keys))) for row in rows.to_pylist()] == found[:3]


def test_whole_table_and_its_log_have_each_row_once(database: PgDatabase, server: PostgresServer) -> None:
    database.sql("create table t (n int)", "insert into t values (1), (1)")
    (table,) = prepared(server, "public.t")
    start = server.low_watermark("public.t")
    with closing(database.connect()) as session, session.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute("insert into t values (2)")
        database.sql("insert into t values (3)")
        seen, *batches = server.reads.whole(table)
        cursor.execute("commit")
    database.sql("insert into t values (4)")
    assert isinstance(seen, Seen)
    assert sorted(pa.Table.from_batches(batches)["n"].to_pylist()) == [1, 1, 3]
    log = [*server.reads.log(start, server.log_end(), [replace(table, seen=seen)])]
    rows = [row for one in log if isinstance(one, Changes) for row in one.rows["n"].to_pylist()]
    assert sorted(rows) == [2, 4]


def test_low_watermark_waits_for_transactions_that_changed_the_table(
    database: PgDatabase, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.sql("create table t (id int primary key)", "create table other (id int primary key)")
    prepared(server, "public.t", "public.other")
    with closing(database.connect()) as session, session.cursor() as cursor:
        cursor.execute("begin; insert into t values (1)")
        waits: list[float] = []
        monkeypatch.setattr(
            "lakehouse.platform.sources.postgres.server._CLOCK.sleep",
            lambda seconds: waits.append(seconds) or (len(waits) == 3 and cursor.execute("commit")),
        )
        server.low_watermark("public.other")
        assert waits == []
        position = server.low_watermark("public.t")
    assert len(waits) == 3
    assert position.order <= server.log_end().order


def test_slot_is_confirmed_forward_and_a_gap_is_named(database: PgDatabase, server: PostgresServer) -> None:
    database.sql("create table t (id int primary key)")
    tables = prepared(server, "public.t")
    first = server.low_watermark("public.t")
    database.sql("insert into t values (1)")
    second = server.log_end()
    assert server.resumed(first) == first
    before = server.unconfirmed()
    database.run("create table elsewhere (id int)", "insert into elsewhere select generate_series(1, 999)")
    list(server.reads.log(second, server.log_end(), tables))
    # A read, also one without changes, confirms nothing.
    after = server.unconfirmed()
    assert before is not None and after is not None and after[1] > before[1]
    assert server.resumed(first) == first
    server.confirm([second, first])
    server.confirm([second])
    server.confirm([first])
    assert server.unconfirmed() == (f"lakehouse_{database.name}", server.log_end().order - second.order)
    with pytest.raises(SnapshotNeededError, match=r"has been moved to .* Read the table again with --resnapshot"):
        server.resumed(first)
    other = type(first)(server="1/x", order=first.order, text=first.text)
    with pytest.raises(SnapshotNeededError, match=r"whose log has other places.* --full-refresh"):
        server.resumed(other)
    server.confirm([other])
    assert server.resumed(second) == second
    database.run(f"select pg_drop_replication_slot('lakehouse_{database.name}')")
    for resume in (lambda: server.resumed(second), lambda: server.prepare(tables, resumes=True)):
        with pytest.raises(SnapshotNeededError, match=r"does not exist any more.* --full-refresh"):
            resume()
    assert server.prepare(tables, resumes=False) == frozenset()
    assert server.unconfirmed() is not None


def test_slot_whose_log_the_server_removed_is_named_and_made_again(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql("create table t (id int primary key)")
    tables = prepared(server, "public.t")
    position = server.low_watermark("public.t")
    database.run("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    try:
        for number in range(4):
            database.run(f"insert into t values ({number})", "select pg_switch_wal()")
        database.run("checkpoint")
        message = r"has removed log that the replication slot .* \(wal_status lost, max_slot_wal_keep_size\)"
        with pytest.raises(SnapshotNeededError, match=message):
            server.resumed(position)
        with pytest.raises(SnapshotNeededError, match=message):
            server.prepare(tables, resumes=True)
    finally:
        database.run("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")
    server.prepare(tables, resumes=False)
    again = server.low_watermark("public.t")
    assert server.resumed(again) == again


def test_two_first_runs_at_once_make_one_publication_and_one_slot(database: PgDatabase) -> None:
    database.sql("create table t (id int primary key)")

    def prepare(number: int) -> frozenset[str]:
        with closing(opened(database)) as server:
            return server.prepare([*server.describe(["public.t"]).values()], resumes=False)

    with ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(prepare, range(4)), key=len)
    assert found == [frozenset()] * 3 + [frozenset({"public.t"})]


class Wire:
    """A connection that has received messages; implements what a stream needs of it."""

    def __init__(self, *received: bytes) -> None:
        self.received, self.sent = [*received], list[bytes]()

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        data = self.received.pop(0)
        return len(data), memoryview(data)

    def put_copy_data(self, data: bytes) -> None:
        self.sent.append(data)

    def flush(self) -> None:
        """Nothing to send."""


def test_stream_answers_the_server_and_names_no_place(server: PostgresServer) -> None:
    row = struct.pack(">cqqq", b"w", 7, 7, 0) + b"row"
    keepalives = [struct.pack(">cqqB", b"k", place, 0, asks) for place, asks in ((8, 0), (9, 1), (10, 0))]
    stream = SlotStream(server.reads.access, "none", ())
    stream.close()
    stream._connection = wire = Wire(row, *keepalives)
    assert [*stream.messages(10)] == [(b"row", 7)]
    assert wire.sent == [b"r" + bytes(33)]
    stream._connection = Wire(b"?")
    with pytest.raises(CorruptLogError, match="is not a replication message"):
        next(stream.messages(10))


def test_rights_settings_and_publications_that_lack_something_are_named(database: PgDatabase) -> None:
    database.run(
        "create table t (id int primary key)",
        "create table plain (id int)",
        "insert into t values (1)",
        "grant select on t, plain to public",
    )
    with closing(opened(database)) as server:
        tables = [*server.describe(["public.t", "public.plain"]).values()]
        message = r'has to run: CREATE PUBLICATION "lakehouse_shop_\d+" FOR TABLE "public"."t" WITH .*; CREATE '
        for refused in (lambda: server.check(tables), lambda: server.prepare(tables, resumes=False)):
            with pytest.raises(UserError, match=message):
                refused()
        name = f"lakehouse_{database.name}"
        database.run(
            f"create publication {name} for table t where (id > 1) with (publish = 'insert')",
            f"create publication {name}_inserts for table plain with (publish = 'insert, truncate', "
            "publish_via_partition_root)",
        )
        with pytest.raises(UserError, match=r"leaves out rows of public.t: .* DROP TABLE"):
            server.check(tables)
        database.run(f"alter publication {name}_inserts set table plain (id)", "alter table plain add column n int")
        database.run(f"alter publication {name} set table t")
        tables = [*server.describe(["public.t", "public.plain"]).values()]
        with pytest.raises(UserError, match=r"leaves out columns of public.plain: n\. Run ALTER PUBLICATION"):
            server.check(tables)
        database.run(f"alter publication {name}_inserts set table plain")
        with pytest.raises(UserError, match=r"ALTER PUBLICATION .* SET \(publish = 'insert, update, delete, truncate'"):
            server.check(tables)
        database.run(
            f"alter publication {name} set (publish = 'insert, update, delete, truncate', publish_via_partition_root)"
        )
        server.check(tables)
        assert server.prepare(tables, resumes=False) == frozenset()
        # The application may still change the table without key.
        database.run("insert into plain values (1)", "update plain set id = 2", "delete from plain")
    database.run("create role weak login")
    value = database.connection["AIRFLOW_CONN_POSTGRES_DEFAULT"].replace('"reader"', '"weak"')
    access = postgres_access("postgres_default", {"AIRFLOW_CONN_POSTGRES_DEFAULT": value})
    with (
        closing(PostgresServer(access, SETTINGS, database.name)) as server,
        pytest.raises(UserError, match=r"may not read the log: ALTER ROLE weak REPLICATION"),
    ):
        server.check([])


def test_reads_name_the_server_without_the_password_if_it_is_away_or_ends_the_log(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql("create table t (id int primary key)")
    (table,) = prepared(server, "public.t")
    reads, start = server.reads, server.low_watermark("public.t")
    database.sql("drop table t")
    with pytest.raises(LakehouseError, match=r'relation "public.t" does not exist'):
        list(reads.chunk(table, ("id",), Chunk()))
    database.run(f'drop publication "lakehouse_{database.name}"')
    database.run("create table x (id int)", "insert into x values (1)")
    with pytest.raises(SnapshotNeededError, match=r"publication .* does not exist.* --full-refresh"):
        list(reads.log(start, server.log_end(), [table]))
    gone = replace(reads, access=replace(reads.access, port=1))
    for read in (gone.chunk(table, ("id",), Chunk()), gone.log(start, server.log_end(), [table])):
        with pytest.raises(RetryableError) as raised:
            list(read)
        assert reads.access.password not in raised.value.message
    wrong = replace(reads, access=replace(reads.access, password="wrong-password"))
    assert "wrong-password" not in repr(wrong)


def test_chunks_whose_connection_is_cut_fail_and_have_each_row_once_if_repeated(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.sql("create table t (id int primary key, x text)")
    database.sql("insert into t select n, repeat('x', 200) from generate_series(1, 3000) n")
    (table,) = prepared(server, "public.t")
    reads = server.reads
    with proxy_to(f"{HOST}:{database.port}", lambda _: 100_000) as proxy:
        cut = replace(reads, access=replace(reads.access, port=proxy.port))
        kinds = (lambda: list(cut.chunk(table, ("id",), Chunk())), lambda: list(cut.whole(table)))
        for read in kinds:
            with pytest.raises(RetryableError, match="reading a chunk from"):
                read()
        assert until(lambda: proxy.cuts == len(kinds))
        proxy.cut_after = None
        for read in kinds:
            rows = pa.Table.from_batches([one for one in read() if isinstance(one, pa.RecordBatch)])
            assert sorted(rows["id"].to_pylist()) == [*range(1, 3001)]


def test_read_without_the_right_names_the_table_and_is_not_repeated(
    database: PgDatabase, server: PostgresServer
) -> None:
    database.run("create table other (id int primary key)", f"grant select on other to {READER}")
    table = server.describe(["public.other"])["public.other"]
    reads = server.reads
    database.run(f"revoke select on other from {READER}")
    for read in (reads.chunk(table, ("id",), Chunk()), reads.whole(table)):
        with pytest.raises(UserError, match=r"42501.*permission denied for table other.*grant the user the right"):
            list(read)


def test_read_that_is_given_up_closes_its_connection(database: PgDatabase, server: PostgresServer) -> None:
    database.sql("create table t (id int primary key, x text)")
    database.sql("insert into t select n, repeat('x', 200) from generate_series(1, 100000) n")
    (table,) = prepared(server, "public.t")
    active = "select count(*) from pg_stat_activity where query like 'COPY%' and datname = current_database()"
    for read in (server.reads.chunk(table, ("id",), Chunk()), server.reads.whole(table)):
        rows = (one for one in read if isinstance(one, pa.RecordBatch))
        assert 0 < next(rows).num_rows < 100_000
        assert database.query(active) == [(1,)]
        read.close()
        assert until(lambda: database.query(active) == [(0,)])


def test_chunks_of_a_task_share_a_connection_until_a_read_fails(database: PgDatabase, server: PostgresServer) -> None:
    database.sql("create table t (id int primary key)", "insert into t select * from generate_series(1, 100)")
    (table,) = prepared(server, "public.t")
    chunks = [Chunk(after=None, upto=("50",)), Chunk(after=("50",), upto=None)]

    def rows(reads: TableReads) -> int:
        return sum(one.num_rows for part in chunks for one in reads.chunk(table, ("id",), part))

    with proxy_to(f"{HOST}:{database.port}") as proxy:
        through = replace(server.reads, access=replace(server.reads.access, port=proxy.port))
        with through.connected() as reads:
            assert rows(reads) == 100 and proxy.accepted == 1
            database.run("alter table t rename to other")
            with pytest.raises(RetryableError, match=r'relation "public.t" does not exist'):
                rows(reads)
            database.run("alter table other rename to t")
            assert rows(reads) == 100 and proxy.accepted == 2


def chunk(server: PostgresServer, one: Chunk, name: str = "public.t") -> list[pa.RecordBatch]:
    """Return the rows of a chunk."""
    table = server.describe([name])[name]
    return list(server.reads.chunk(table, table.key, one))


def rows_of(changes: Changes) -> list[tuple[object, ...]]:
    """Return the kind and the values of each change."""
    rows = changes.rows.to_pylist()
    names = [name for name in changes.rows.column_names if name not in CONTROL]
    return [(row["_change"], *(row[name] for name in names)) for row in rows]
