"""Spark repeats a failed task: the driver announces file names of first attempts, and no other attempt uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# Uses a separate session, because the number of attempts is set when Spark starts.
STUMBLING = """
import json
from pyspark.sql import SparkSession
from lakehouse.spark.engine import SparkEngine

spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")

def run(light):
    def stumble(attempt, task):
        if attempt.first and task == 4:
            raise OSError("the disk of this worker is gone")
        return attempt.first, attempt.as_planned().token, attempt.as_planned().announced
    return SparkEngine(spark, 64 << 20).run(stumble, list(range(6)), light=light)

print(json.dumps([run(False), run(True)]))
spark.stop()
"""


def test_repeated_task_uses_a_name_that_was_not_announced() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", STUMBLING], cwd=root, check=True, capture_output=True, text=True)
    alone, shared = json.loads(done.stdout.splitlines()[-1])
    planned = [[True, f"{task}-0-0", True] for task in range(6)]
    assert [found for found in alone if found[0]] == [found for found in planned if found[1] != "4-0-0"]
    assert [found[0::2] for found in alone if not found[0]] == [[False, False]]
    # Light tasks that share a Spark task are repeated together, including those before the failed one.
    again = [found for found in shared if not found[0]]
    assert again and all(found in planned for found in shared if found[0])
    for tries in (alone, shared):
        assert len({token for _, token, _ in tries}) == 6
        assert not {token for first, token, _ in tries if not first} & {token for _, token, _ in planned}
