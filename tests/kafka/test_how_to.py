"""The page docs/how-to/ingest-kafka.md: its spec ingests a topic by the command line, and no secret is shown."""

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
from tests.support.kafka import Broker, Message

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ingest-kafka.md"
PASSWORD = "correct-horse-battery"
# Two runs in one process start one Spark session.
RUN = """
import contextlib, os, sys
from lakehouse.cli.main import main
for number in "12":
    with open(f"report{number}.json", "w") as file, contextlib.redirect_stdout(file):
        main(["ingest", "run", "--table", "orders.yaml", "--output", "json"])
print(open("/proc/self/cmdline").read())
for child in os.popen(f"ps -o args= --ppid {os.getpid()}"):
    print(child)
"""


def test_spec_of_the_page_ingests_a_topic_twice_and_shows_no_secret(kafka: Broker, tmp_path: Path) -> None:
    spec = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "orders.yaml").write_text(spec)
    kafka.topic(2, "orders")
    values = [json.dumps({"order_id": f"o{n % 3}", "fare": n, "updated_at": "2026-01-01T00:00:00Z"}) for n in range(6)]
    kafka.send("orders", [Message(value=value, partition=number % 3 % 2) for number, value in enumerate(values)])
    extra = {"bootstrap.servers": kafka.address, "sasl.password": PASSWORD}
    environ = {**os.environ, "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": extra})}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = (parse_report((tmp_path / f"report{number}.json").read_text()) for number in "12")
    assert (first.status, first.rows, first.inserts) == (JobStatus.COMMITTED, 3, 3)
    assert second.status is JobStatus.NOTHING_TO_DO
    table = Table.open(tmp_path / "lake" / "orders")
    rows = table.scan(columns=["order_id", "fare"]).to_arrow().sort_by("order_id").to_pylist()
    assert rows == [{"order_id": f"o{number}", "fare": number + 3.0} for number in range(3)]
    shown = [done.stdout, done.stderr, *(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())]
    assert not [text for text in shown if PASSWORD in text]
