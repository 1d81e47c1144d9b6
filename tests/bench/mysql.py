"""Snapshot of a MariaDB table in parallel chunks beside dumps of the server's own tools, and the lag under updates.

The CPU time is that of the server, of its tools, and of Spark with its tasks together, because a dump to a file is the
work of the server alone.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.sources.databases.server import Chunk
from lakehouse.platform.sources.databases.source import LAG
from lakehouse.platform.sources.databases.staging import ChunkRead, Stager, parse_reports
from lakehouse.platform.sources.mysql.server import MysqlServer
from lakehouse.spark.database_rows import run_tasks
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.sources.mysql_connection import mysql_access
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.bench.measure import Comparison, Sample, Side, compare, interleave, show_lines
from tests.bench.setting import Setting, spark
from tests.support.mariadb import mariadb_server
from tests.support.mysql import ADMIN, ADMIN_PASSWORD, DatabaseServer
from tests.support.postgresql import HOST

MOST_ROWS = 5_000_000
#: The chunks have at least this share of the rows per CPU second of a dump.
SHARE = 0.8
UPDATES_PER_S, SECONDS, INTERVAL_S = 2_000, 60, 60
DUMP, CLIENT, OUTFILE = "mariadb-dump", "client --batch", "into outfile"
_COLUMNS = (
    "id bigint primary key, customer int, item int, amount decimal(12, 2), tax decimal(12, 2), fare double, "
    "tip double, state varchar(10), city varchar(20), note varchar(60), code char(8), flag tinyint, day date, "
    "created datetime, changed timestamp(3) null, a int, b int, c bigint, d smallint, e varchar(30)"
)
_VALUES = (
    "seq, seq % 10007, seq % 977, seq / 100, seq / 1000, seq * 0.25, seq * 0.5, elt(1 + seq % 3, 'new', 'paid', 'sent')"
    ", concat('city ', seq % 500), md5(seq), lpad(hex(seq), 8, '0'), seq % 2, date_add('2026-01-01', interval seq % 90 "
    "day), date_add('2026-01-01 00:00:00', interval seq second), date_add('2026-01-01 00:00:00', interval seq second), "
    "seq % 7, seq % 11, seq * 13, seq % 100, concat('e', seq % 1000)"
)


def run(setting: Setting) -> list[Comparison]:
    """Compare the reads of all chunks with dumps, and print the lag while rows are updated."""
    rows = min(setting.rows, MOST_ROWS)
    with mariadb_server(innodb_buffer_pool_size="1G", innodb_log_file_size="512M") as server:
        fill(server, rows)
        samples = interleave(sides(setting, server, rows), setting.rounds)
        show_rates(samples, rows)
        show_lag(setting, server, rows)
    what = f"snapshot of {rows:,} rows x 20 columns into Parquet"
    return [compare(what, samples, "chunks", other) for other in samples if other != "chunks"]


def fill(server: DatabaseServer, rows: int) -> None:
    """Create the table, without entries in the log."""
    server.run("create database shop")
    server.run(
        f"create table shop.orders ({_COLUMNS})",
        "set sql_log_bin = 0",
        f"insert into shop.orders select {_VALUES} from seq_1_to_{rows}",
        "analyze table shop.orders",
        database="shop",
    )


def sides(setting: Setting, server: DatabaseServer, rows: int) -> list[Side]:
    """Return the reads in chunks, and the two dumps."""
    source = MysqlSourceSpec(database=DatabaseSettings(tables=("shop.orders",)))

    def chunks(number: int) -> None:
        with closing(MysqlServer(mysql_access("mysql_default", server.connection), source)) as reader:
            table = reader.describe(["shop.orders"])["shop.orders"]
            ranges = reader.chunks(table, table.key, None, rows=100_000, most=10_000)
            storage = open_storage(setting.fresh("chunks"))
            work = [ChunkRead(table=table, key=table.key, chunk=Chunk(after=c.after, upto=c.upto)) for c in ranges]
            stager = Stager(
                reads=reader.reads, storage=storage, folder="0", run=partial(run_tasks, spark()), log_end=reader.log_end
            )
            files, _, _ = parse_reports(stager.run(stager.task(tuple(work)), len(work)))
        assert sum(file.rows for file in files) == rows

    def outfile(number: int) -> None:
        path = Path(setting.fresh("outfile")).with_name(f"outfile-{number}.txt")
        server.run(f"select * from shop.orders into outfile '{path}'")
        path.unlink()

    def program(name: str, *arguments: str) -> None:
        access = [f"--host={HOST}", f"--port={server.port}", f"--user={ADMIN}", f"--password={ADMIN_PASSWORD}"]
        with open(setting.home / f"{name}.txt", "wb") as file:
            subprocess.run([name, *access, *arguments], stdout=file, check=True)

    def client(number: int) -> None:
        program("mariadb", "--batch", "--quick", "-e", "select * from shop.orders")

    def dump(number: int) -> None:
        program(DUMP, "--single-transaction", "--quick", "--no-create-info", "shop", "orders")

    found = [Side(name="chunks", run=chunks), Side(name=CLIENT, run=client), Side(name=OUTFILE, run=outfile)]
    # Not all installations of the server have it.
    return [*found, Side(name=DUMP, run=dump)] if shutil.which(DUMP) else found


def show_rates(samples: dict[str, list[Sample]], rows: int) -> None:
    """Print the rows per CPU second of each side, and our share of them."""
    rates = {name: rows / sorted(one.cpu_s for one in found)[len(found) // 2] for name, found in samples.items()}
    lines = [("side", "rows/s of CPU", "ours is", "target")]
    for name, rate in rates.items():
        share = rates["chunks"] / rate
        target = f">= {SHARE}{'' if share >= SHARE else '  MISSED'}" if name != "chunks" else ""
        lines.append((name, f"{rate:,.0f}", f"{share:.2f}", target))
    show_lines(lines)


def show_lag(setting: Setting, server: DatabaseServer, rows: int) -> None:
    """Print how far the table is behind the source after each run while rows are updated."""
    spec: TableSpec = parse_spec(
        json.dumps(
            {
                "table": "orders",
                "location": setting.fresh("orders"),
                "record_key": ["id"],
                "type": "MERGE_ON_READ",
                "index": {"type": "BUCKET", "buckets": 4},
                "ingest": {"source": "mysql", "tables": "shop.orders"},
            }
        ),
        source="orders.yaml",
    )
    command = IngestCommand(table="orders.yaml")
    first = run_ingest(spark(), spec, command, environ=server.connection)
    writer = multiprocessing.get_context("spawn").Process(target=update, args=(server.port, rows), daemon=True)
    writer.start()
    lines = [("run", "seconds", "changes", "lag bytes", "lag seconds")]
    began = time.monotonic()
    try:
        while time.monotonic() - began < SECONDS:
            report = run_ingest(spark(), spec, command, environ=server.connection)
            lag = json.loads(Table.open(spec.location).commits()[-1][1].extra[LAG])
            behind = str(lag["seconds"])
            lines.append((str(len(lines)), f"{report.seconds:.1f}", f"{report.rows:,}", f"{lag['bytes']:,}", behind))
    finally:
        writer.terminate()
        writer.join()
    print(f"    whole first run: {first.rows:,} rows in {first.seconds:.1f} s")
    show_lines(lines)
    worst = max(int(line[4]) for line in lines[1:])
    print(f"  lag under {UPDATES_PER_S:,} updates/s: {worst} s{'' if worst < INTERVAL_S else '  MISSED'}")


def update(port: int, rows: int) -> None:
    """Update rows one by one, so many each second, until the process ends."""
    import pymysql

    account = {"host": HOST, "port": port, "user": ADMIN, "password": ADMIN_PASSWORD, "autocommit": True}
    with closing(pymysql.connect(**account)) as connection, connection.cursor() as cursor:
        began, done = time.monotonic(), 0
        while True:
            cursor.execute(f"update shop.orders set a = a + 1 where id = {1 + done * 7919 % rows}")
            done += 1
            ahead = done / UPDATES_PER_S - (time.monotonic() - began)
            if ahead > 0.01:
                time.sleep(ahead)
