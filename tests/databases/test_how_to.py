"""The page docs/how-to/ingest-mysql.md: its spec ingests a database by the command line, and no secret is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from lakehouse.spec.contracts.job import JobStatus, parse_report
from tests.support.mysql import READER_PASSWORD, DatabaseServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ingest-mysql.md"
# Two runs in one process start one Spark session.
RUN = """
import contextlib, os, sys
from lakehouse.cli.main import main
for number in "12":
    with open(f"report{number}.json", "w") as file, contextlib.redirect_stdout(file):
        main(["ingest", "run", "--table", "shop.yaml", "--output", "json"])
print(open("/proc/self/cmdline").read())
for child in os.popen(f"ps -o args= --ppid {os.getpid()}"):
    print(child)
"""


def test_spec_of_the_page_ingests_a_database_twice_and_shows_no_secret(mariadb: DatabaseServer, tmp_path: Path) -> None:
    spec = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "shop.yaml").write_text(spec)
    mariadb.run(
        "create database shop",
        "create table shop.orders (id int primary key, total decimal(12, 2))",
        "create table shop.items (order_id int, line int, note text, primary key (order_id, line))",
        "create table shop.items_old (id int primary key)",
        "insert into shop.orders values (1, 10.50), (2, 0.01)",
        "insert into shop.items values (1, 1, 'a'), (1, 2, 'b')",
    )
    environ = {**os.environ, **mariadb.connection}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = (parse_report((tmp_path / f"report{number}.json").read_text()) for number in "12")
    assert (first.status, first.rows, first.inserts) == (JobStatus.COMMITTED, 4, 4)
    assert [part.table for part in first.parts] == ["items", "orders"]
    assert second.status is JobStatus.NOTHING_TO_DO
    rows = Table.open(tmp_path / "lake" / "shop" / "orders").scan(columns=["id", "total"]).to_arrow().to_pylist()
    assert sorted((row["id"], str(row["total"])) for row in rows) == [(1, "10.50"), (2, "0.01")]
    assert not (tmp_path / "lake" / "shop" / "items_old").exists()
    shown = [done.stdout, done.stderr, *(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())]
    assert not [text for text in shown if READER_PASSWORD in text]
    checkpoint = json.loads(
        str(Table.open(tmp_path / "lake" / "shop" / "items").last_commit_extra("lakehouse.ingest.checkpoint"))
    )
    assert checkpoint["complete"] is True
