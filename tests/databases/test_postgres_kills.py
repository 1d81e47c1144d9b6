"""Runs of the spec of docs/how-to/ingest-postgres.md that SIGKILL ends leave nothing to repair, and show no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.killed_ingest import killed_run
from tests.support.postgres import READER_PASSWORD, PgServer, PgShop

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ingest-postgres.md"


def test_spec_of_the_page_is_completed_after_kills_and_shows_no_secret(
    spark: SparkSession, postgres: PgServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "shop.yaml").write_text(text)
    source = PgShop(spark, postgres.database(), tmp_path)
    source.sql(
        "create table orders (id int primary key, total numeric(12, 2), note text)",
        "alter table orders alter note set storage external",
        "create table items (order_id int, line int, note text, primary key (order_id, line))",
        "create table items_old (id int primary key)",
        "insert into orders select n, n / 10.0, repeat('n', 9000) from generate_series(1, 50) n",
        "insert into items values (1, 1, 'a'), (1, 2, 'b')",
    )

    def stored(name: str, columns: str) -> list[tuple[object, ...]]:
        rows = Table.open(tmp_path / "lake" / "shop" / name).scan(columns=columns.split(", ")).to_arrow().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def run() -> IngestReport:
        command = IngestCommand(table="shop.yaml")
        return run_ingest(spark, parse_spec(text, source="shop.yaml"), command, environ=source.server.connection)

    connection = source.server.connection
    # Only one of both tables has its commit.
    shown = killed_run(tmp_path, connection, "before", 2)
    assert (tmp_path / "lake" / "shop" / "items" / ".hoodie").exists()
    source.sql("update orders set id = id + 100 where id < 10", "delete from items where line = 1")
    # Both have their commits, and the slot is where it was.
    shown += killed_run(tmp_path, connection, "confirm")
    (confirmed,) = source.server.query("select confirmed_flush_lsn - '0/0' from pg_replication_slots")[-1]
    positions = [
        Table.open(tmp_path / "lake" / "shop" / name).last_commit_extra("lakehouse.ingest.checkpoint")
        for name in ("orders", "items")
    ]
    orders = [int(str(re.search(r'"order": (\d+)', str(one))[1])) for one in positions]  # type: ignore[index]
    assert confirmed < min(orders)
    source.sql("update orders set total = 0 where id > 100", "insert into items values (2, 1, 'c')")
    assert run().status is JobStatus.COMMITTED
    assert stored("orders", "id, total, note") == source.source("id, total, note", "orders")
    assert stored("items", "order_id, line, note") == [(1, 2, "b"), (2, 1, "c")]
    assert run().status is JobStatus.NOTHING_TO_DO
    assert not (tmp_path / "lake" / "shop" / "items_old").exists()
    files = [path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20 and "ingest" in shown
    assert not [one for one in (shown, *files) if READER_PASSWORD in one]
