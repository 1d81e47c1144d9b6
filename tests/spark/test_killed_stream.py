"""A query of `writeStream.format("lakehouse")` is killed right after a commit: no batch is lost or written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse import Table
from lakehouse.spark.stream import STREAM
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 4
DEADLINE_S = 300
PROGRAM = """
import sys
from lakehouse.spark import job_session

folder = sys.argv[1]
spark = job_session("stream", {
    "spark.master": "local[2]",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
})
source = spark.readStream.schema("id string, ts long").option("maxFilesPerTrigger", 1).json(folder + "/in")
source.writeStream.format("lakehouse").options(**{
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.operation": "insert",
}).option("path", folder + "/t").option("checkpointLocation", folder + "/checkpoint").trigger(
    availableNow=True
).start().awaitTermination()
"""


def started(folder: Path) -> subprocess.Popen[bytes]:
    """Start the query in a session of its own, so that all its processes can be killed."""
    repository = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(repository), "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-c", PROGRAM, str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def commits(folder: Path) -> int:
    timeline = folder / "t" / ".hoodie" / "timeline"
    return len([*timeline.glob("*_*.commit")])


@pytest.mark.parametrize("after", [1, 2])
def test_killed_query_continues_without_loss_and_without_duplicates(after: int, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        rows = [json.dumps({"id": f"{number}-{row}", "ts": number}) for row in range(3)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(rows))
    query = started(tmp_path)
    assert until(lambda: commits(tmp_path) >= after or query.poll() is not None, DEADLINE_S)
    assert query.poll() is None, (tmp_path / "log").read_text()[-3000:]
    os.killpg(query.pid, signal.SIGKILL)
    query.wait(30)
    again = started(tmp_path)
    assert again.wait(DEADLINE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    table = Table.open(str(tmp_path / "t"))
    keys = table.scan(columns=["id"]).to_arrow().column("id").to_pylist()
    assert sorted(keys) == sorted(f"{number}-{row}" for number in range(BATCHES) for row in range(3))
    marks = [text for _, commit in table.commits() for key, text in commit.extra.items() if key.startswith(STREAM)]
    assert marks == [str(number) for number in range(BATCHES)]
