"""Runs that SIGKILL ends at their commit are repeated or finished by the next run, against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.kafka.test_kafka_faults import assert_complete, fill, run_until_done
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker

pytestmark = pytest.mark.spark
#: Runs the command line; the process is killed before or after the instant of its commit is completed.
KILLED = """
import os, signal, sys
from lakehouse.cli.main import main
from lakehouse.core.timeline.timeline_store import TimelineStore

complete = TimelineStore.complete

def killed(*args, **kwargs):
    if sys.argv[1] == "after":
        complete(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

TimelineStore.complete = killed
main(sys.argv[2:])
"""


@pytest.fixture
def topic(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Topic:
    """A topic with an append-only table: a message that is read twice would be two rows."""
    made = Topic(spark, kafka, tmp_path, partitions=2)
    made.change(operation="insert")
    return made


@pytest.mark.parametrize("moment", ["before", "after"])
def test_run_that_is_killed_at_its_commit_is_repeated_or_finished(topic: Topic, tmp_path: Path, moment: str) -> None:
    fill(topic, 0, 100)
    spec = {
        "table": "orders",
        "location": topic.spec.location,
        "record_key": ["id"],
        "schema": dict(topic.spec.schema),
        "ingest": {"source": "kafka", "topic": topic.name, "operation": "insert"},
    }
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(spec))
    environ = {**os.environ, **topic.broker.connection}
    words = [sys.executable, "-c", KILLED, moment, "ingest", "run", "--table", "orders.yaml"]
    killed = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    fill(topic, 100, 120)
    run_until_done(topic)
    assert_complete(topic, 120)
