"""Processes of a cluster are killed while executors write, and tasks run twice: the rows equal those of a dict."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from lakehouse import Table
from tests.clusters.models import JOBS, check, create_table, rows
from tests.support.paused_storage import Control
from tests.support.spark_cluster import (
    DEADLINE_S,
    REPOSITORY,
    SparkCluster,
    end_session,
    finished,
    start_worker,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A table with rows, and the control folder of its storage."""
    table = create_table(tmp_path / "t")
    values = rows(0, 40, 1)
    columns = {"id": list(values), "day": [str(int(key) % 4) for key in values], "v": list(values.values())}
    table.upsert(pa.table({**columns, "ts": [1] * len(values)}))
    return tmp_path / "t"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    control = Control(tmp_path / "control")
    control.set()
    yield control
    control.release()


# parameters: the cluster with its table, and the job with the number of attempts to await
def started(
    cluster: SparkCluster, place: Path, control: Control, attempts: int, name: str = "paused_upsert", **conf: str
) -> subprocess.Popen[str]:
    """Start a job whose attempts at data files are held; return it when executors write."""
    job = cluster.submit(JOBS, name, str(place), "20", "80", "3", conf=conf)
    if not until(lambda: len(control.names("attempt")) >= attempts or job.poll() is not None, DEADLINE_S):
        end_session(job)
    assert job.poll() is None and len(control.names("attempt")) >= attempts, finished(job)[1] + cluster.logs()[-3000:]
    return job


@pytest.mark.parametrize("name", ["paused_upsert", "paused_merge"])
def test_executor_killed_while_it_writes_loses_and_repeats_no_row(
    name: str, cluster: SparkCluster, place: Path, control: Control
) -> None:
    control.set("hold")
    job = started(cluster, place, control, 2, name)
    cluster.executors()[0].kill()
    control.release()
    code, output = finished(job)
    assert code == 0, output[-5000:]
    assert max(map(len, control.attempts_per_task().values())) > 1, "no task was repeated"
    check(place, {**rows(0, 40, 1), **rows(20, 80, 3)})


def test_worker_killed_with_its_executor_loses_and_repeats_no_row(
    cluster: SparkCluster, place: Path, control: Control
) -> None:
    control.set("hold")
    job = started(cluster, place, control, 2)
    writing = {int(name.rpartition("-")[2]) for name in control.names("attempt")}
    name, worker = next(
        (name, process)
        for name, process in cluster.processes.items()
        if any(child.pid in writing for child in psutil.Process(process.pid).children(recursive=True))
    )
    end_session(worker)
    control.release()
    code, output = finished(job)
    # Later tests have two workers again.
    start_worker(cluster, name, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(REPOSITORY))
    assert code == 0, output[-5000:]
    check(place, {**rows(0, 40, 1), **rows(20, 80, 3)})


@pytest.mark.parametrize("name", ["paused_upsert", "paused_merge"])
def test_driver_killed_after_data_files_exist_is_rolled_back_by_the_next_run(
    name: str, cluster: SparkCluster, place: Path, control: Control
) -> None:
    control.set("hold", "first")
    before = set(place.rglob("*.parquet"))
    job = started(cluster, place, control, 2, name)
    assert until(lambda: bool(control.names("finished")), DEADLINE_S)
    assert {path for path in place.rglob("*.parquet") if path.stat().st_size and path not in before}
    workers = [psutil.Process(int(name.rpartition("-")[2])) for name in control.names("attempt")]
    end_session(job)
    assert job.returncode == -signal.SIGKILL
    assert Table.open(str(place)).timeline.where(pending=True)
    control.release()
    psutil.wait_procs(workers, timeout=DEADLINE_S)
    code, output = cluster.run(JOBS, "upsert", str(place), "60", "90", "5")
    assert code == 0, output[-5000:]
    check(place, {**rows(0, 40, 1), **rows(60, 90, 5)})


@pytest.mark.parametrize("name", ["paused_upsert", "paused_merge"])
def test_duplicate_attempts_of_slow_tasks_write_each_row_once(
    name: str, cluster: SparkCluster, place: Path, control: Control
) -> None:
    control.set("slow")
    job = started(
        cluster,
        place,
        control,
        1,
        name,
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "100ms",
        },
    )
    code, output = finished(job)
    assert code == 0, output[-5000:]
    assert max(map(len, control.attempts_per_task().values())) > 1, "no task had a duplicate"
    check(place, {**rows(0, 40, 1), **rows(20, 80, 3)})
