"""A Spark job whose driver is killed while its workers write: they go on for a while, and nothing comes of it.

LAKEHOUSE_KILLS=all pytest tests/spark/test_killed_driver.py     the JVM alone and Python alone, besides both

On a cluster executors outlive their driver until they notice. Here workers are made to: they stop inside of a data
file until they are told to go on, and do not mind being told that Spark has gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import OutputFile
from lakehouse.core.table.table import Table
from tests.support.killed import BASE, RECOVERY, base_table, batch, leftovers, rows_of
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
WORKERS = 2
# Spark may take its time to start on a machine that is busy.
DEADLINE_S = 300
# Most of the time goes into the start of a JVM, which does so little that it need not become fast.
SESSION = {
    "spark.master": f"local[{WORKERS}]",
    "spark.task.maxFailures": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: Who is killed, and whether the workers go on after the next writer has rolled the write back.
WAYS = (("both", True), ("jvm", False), ("python", True))


class HaltingStorage(LocalStorage):
    """A disk where no data file is finished before `go` lies beside the table; who waits shows there, too."""

    def open_output(self, path: str) -> OutputFile:
        """Open a file whose `close` waits."""
        inner = super().open_output(path)
        return _Halting(inner, Path(self.root).parent) if path.endswith(".parquet") else inner


class _Halting(PassingOutput):
    def __init__(self, inner: OutputFile, beside: Path) -> None:
        super().__init__(inner)
        self.beside = beside

    def close(self) -> None:
        """Tell that a worker has come here, wait, and finish the file."""
        if self.closed:
            return
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        (self.beside / f"{os.getpid()}.writing").touch()
        while not (self.beside / "go").exists():
            time.sleep(0.05)
        try:
            # Whoever rolled the write back has taken the unfinished file away, too.
            self.inner.close()
        finally:
            (self.beside / f"{os.getpid()}.done").touch()


def write_with_spark(place: str) -> None:
    """Insert rows of several partitions by several workers; the driver of the job."""
    from lakehouse.spark.session import job_session

    spark = job_session("mortal", SESSION)
    columns = ("concat('s', id) id", "concat('s', id % 4) p", "id v", "id ts", "false _hoodie_is_deleted")
    frame = spark.range(0, 400, 1, 1).selectExpr(*columns)
    Table.open(place, env=Env(storage=HaltingStorage(place))).upsert(frame)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver whose workers are at their data files; afterwards all of its processes are gone."""
    place = tmp_path / "table"
    base_table(LocalStorage(str(place)), "SIMPLE")
    code = f"from tests.spark.test_killed_driver import write_with_spark; write_with_spark({str(place)!r})"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]),
    }
    log = (tmp_path / "driver.log").open("wb")
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)
    tree: list[psutil.Process] = []
    try:
        _until(lambda: len(list(tmp_path.glob("*.writing"))) >= WORKERS, tmp_path)
        tree += psutil.Process(process.pid).children(recursive=True)
        yield process
    finally:
        (tmp_path / "go").touch()
        log.close()
        for child in [*tree, *(psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ())]:
            if child.is_running():
                child.kill()
        process.kill()
        process.wait()


def _until(condition: Callable[[], bool], tmp_path: Path) -> None:
    assert until(condition, DEADLINE_S), (tmp_path / "driver.log").read_text(errors="replace")[-3000:]


def _kill(driver: subprocess.Popen[bytes], whom: str) -> None:
    """Kill the JVM, or Python's driver, or both at once."""
    (jvm,) = [p for p in psutil.Process(driver.pid).children(recursive=True) if p.name() == "java"]
    if whom != "jvm":
        os.kill(driver.pid, signal.SIGKILL)
    if whom != "python":
        jvm.kill()
    driver.wait(DEADLINE_S)


@pytest.mark.parametrize(("whom", "late"), WAYS if os.environ.get("LAKEHOUSE_KILLS") == "all" else WAYS[:1])
def test_workers_that_outlive_their_driver_make_nothing_visible(
    whom: str, late: bool, driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    place = str(tmp_path / "table")
    storage = LocalStorage(place)
    workers = [psutil.Process(int(path.stem)) for path in tmp_path.glob("*.writing")]
    _kill(driver, whom)
    assert all(worker.is_running() for worker in workers), "workers outlive the driver"
    assert rows_of(storage) == BASE
    if not late:
        _let_go(tmp_path, workers)
    Table.open(place).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**BASE, **RECOVERY}
    if late:
        _let_go(tmp_path, workers)
        assert rows_of(storage) == {**BASE, **RECOVERY}
        # Nobody but a walk over the whole table can know of files that were made after their rollback.
        Table.open(place, options={"lakehouse.clean.orphans.hours": "0"}).services.orphans(remove=True)
    Table.open(place).upsert(batch({("e", "e1"): 3}))
    assert rows_of(storage) == {**BASE, **RECOVERY, ("e", "e1"): 3}
    assert leftovers(storage) == []


def _let_go(tmp_path: Path, workers: list[psutil.Process]) -> None:
    (tmp_path / "go").touch()
    psutil.wait_procs(workers, timeout=DEADLINE_S)
    assert len(list(tmp_path.glob("*.done"))) >= WORKERS
