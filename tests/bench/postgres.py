"""Snapshot of a PostgreSQL table in parallel chunks beside dumps, and reading the log to Arrow beside its messages.

The CPU time is that of the server and its readers together, because a dump to a file is the work of the server alone.
A ratio is one of times: 1.25 is 0.8 of the rate. Both sides of the log read the same changes of the same slot, which
are counted; the CPU time of the reader alone is printed, too, because the server's part is the same for both.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from lakehouse.core.storage.locate import open_storage
from lakehouse.platform.sources.databases.server import Changes, LogPosition, SourceTable
from lakehouse.platform.sources.databases.staging import ChunkRead, Stager, parse_reports
from lakehouse.platform.sources.pgoutput import messages as pgoutput
from lakehouse.platform.sources.postgres.server import PostgresServer
from lakehouse.platform.sources.postgres.stream import SlotStream
from lakehouse.spark.database_rows import run_tasks
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.sources.postgres_connection import postgres_access
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from tests.bench.measure import Comparison, Sample, Side, compare, interleave, show_lines
from tests.bench.setting import Setting, spark
from tests.support.postgres import PgDatabase, postgres_server
from tests.support.postgresql import HOST, USER

MOST_ROWS, MOST_CHANGES = 5_000_000, 200_000
#: The chunks have at least this share of the rows per CPU second of a dump, and the decoder of that of the messages.
SHARE = 0.8
_COLUMNS = (
    "id bigint primary key, customer int, item int, amount numeric(12, 2), tax numeric(12, 2), fare float8, "
    "tip float8, state varchar(10), city varchar(20), note varchar(60), code char(8), flag boolean, day date, "
    "created timestamp, changed timestamptz(3), a int, b int, c bigint, d smallint, e varchar(30)"
)
_VALUES = (
    "n, n % 10007, n % 977, n / 100.0, n / 1000.0, n * 0.25, n * 0.5, (array['new', 'paid', 'sent'])[1 + n % 3], "
    "'city ' || n % 500, md5(n::text), lpad(to_hex(n), 8, '0'), n % 2 = 0, date '2026-01-01' + n % 90, "
    "timestamp '2026-01-01' + n * interval '1 s', timestamptz '2026-01-01 00:00+00' + n * interval '1 s', n % 7, "
    "n % 11, n * 13::bigint, n % 100, 'e' || n % 1000"
)


def run(setting: Setting) -> list[Comparison]:
    """Compare the reads of all chunks with dumps, and those of the log with its messages."""
    rows, changes = min(setting.rows, MOST_ROWS), min(setting.rows // 2, MOST_CHANGES)
    with postgres_server(shared_buffers="1GB", max_wal_size="8GB") as running:
        database = running.database()
        database.sql(
            f"create table orders ({_COLUMNS})",
            f"create table log ({_COLUMNS})",
            f"insert into orders select {_VALUES} from generate_series(1, {rows}) n",
            "analyze orders",
        )
        access = postgres_access("postgres_default", database.connection)
        settings = PostgresSourceSpec(database=DatabaseSettings(tables=("public.*",)))
        with closing(PostgresServer(access, settings, "bench")) as reader:
            snapshot = interleave(_dumps(setting, database, reader, rows), setting.rounds)
            tables = [reader.describe(["public.log"])["public.log"]]
            reader.prepare(tables, resumes=False)
            start = reader.log_end()
            database.sql(
                f"insert into log select {_VALUES} from generate_series(1, {changes}) n",
                "update log set fare = fare + 1, state = 'paid'",
            )
            end = reader.log_end()
            readers: dict[str, list[float]] = {}
            sides = [_timed(side, readers) for side in _logs(reader, tables, start, end, 2 * changes)]
            log = interleave(sides, setting.rounds)
    for other in snapshot:
        if other != "chunks":
            pair = {name: snapshot[name] for name in ("chunks", other)}
            _show(f"rows of the snapshot, {other}", pair, rows, "chunks")
    _show("changes of the log", log, 2 * changes, "decoder")
    alone = {name: [Sample(wall_s=cpu, cpu_s=cpu) for cpu in found[1:]] for name, found in readers.items()}
    _show("changes of the log, without the server", alone, 2 * changes, "decoder")
    what = f"snapshot of {rows:,} rows x 20 columns into Parquet"
    return [
        *(compare(what, snapshot, "chunks", other) for other in snapshot if other != "chunks"),
        compare(f"log of {2 * changes:,} changes x 20 columns to Arrow", log, "decoder", "messages", 1 / SHARE),
    ]


def _dumps(setting: Setting, database: PgDatabase, reader: PostgresServer, rows: int) -> list[Side]:
    """Return the reads in chunks, and three dumps: of the database's own program, of the server, and of a client."""

    def chunks(number: int) -> None:
        table = reader.describe(["public.orders"])["public.orders"]
        ranges = reader.chunks(table, table.key, None, rows=100_000, most=10_000)
        work = tuple(ChunkRead(table=table, key=table.key, chunk=one) for one in ranges)
        storage = open_storage(setting.fresh("chunks"))
        stager = Stager(
            reads=reader.reads, storage=storage, folder="0", run=partial(run_tasks, spark()), log_end=reader.log_end
        )
        files, _, _ = parse_reports(stager.run(stager.task(work), len(work)))
        assert sum(file.rows for file in files) == rows

    def own_program(number: int) -> None:
        place = ["-h", HOST, "-p", str(database.port), "-U", USER, "-d", database.name]
        path = setting.home / "dump.sql"
        subprocess.run(
            [database.running.programs / "pg_dump", *place, "--data-only", "-t", "orders", "-f", path], check=True
        )
        path.unlink()

    def server_file(number: int) -> None:
        path = Path(database.running.place) / f"copy-{number}.txt"
        database.run(f"copy orders to '{path}'")
        path.unlink()

    def client_file(number: int) -> None:
        with (
            closing(database.connect()) as session,
            session.cursor() as cursor,
            open(setting.home / "client.txt", "wb") as file,
            cursor.copy("copy orders to stdout") as copy,
        ):
            for data in copy:
                file.write(data)

    return [
        Side(name="chunks", run=chunks),
        Side(name="pg_dump", run=own_program),
        Side(name="copy to a file", run=server_file),
        Side(name="copy to a client", run=client_file),
    ]


def _logs(
    reader: PostgresServer, tables: list[SourceTable], start: LogPosition, end: LogPosition, changes: int
) -> list[Side]:
    """Return the read of the log to Arrow, and the read of its messages alone."""

    def decode(number: int) -> None:
        found = reader.reads.log(start, end, tables)
        assert sum(one.rows.num_rows for one in found if isinstance(one, Changes)) == changes

    def messages(number: int) -> None:
        reads, rows = reader.reads, (pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE)
        with closing(SlotStream(reads.access, reads.slot, reads.publications)) as stream:
            stream.start(start.order)
            assert sum(1 for data, _ in stream.messages(end.order) if data[0] in rows) == changes

    return [Side(name="decoder", run=decode), Side(name="messages", run=messages)]


def _timed(side: Side, spent: dict[str, list[float]]) -> Side:
    """Return a side that notes the CPU time of this process, in seconds, for each run."""

    def run(number: int) -> None:
        before = time.process_time()
        side.run(number)
        spent.setdefault(side.name, []).append(time.process_time() - before)

    return Side(name=side.name, run=run)


def _show(what: str, samples: dict[str, list[Sample]], rows: int, ours: str) -> None:
    """Print the rows per CPU second of each side, and our share of the best other one's."""
    rates = {name: rows / sorted(one.cpu_s for one in found)[len(found) // 2] for name, found in samples.items()}
    share = rates[ours] / max(rate for name, rate in rates.items() if name != ours)
    lines = [(what, "per s of CPU"), *((name, f"{rate:,.0f}") for name, rate in rates.items())]
    show_lines([*lines, (f"share >= {SHARE}", f"{share:.2f}{'' if share >= SHARE else '  MISSED'}")])
