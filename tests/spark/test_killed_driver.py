"""The driver of a Spark job is killed while its workers write: they continue for a while without visible effect.

LAKEHOUSE_KILLS=all pytest tests/spark/test_killed_driver.py     the JVM alone and Python alone, besides both

On a cluster, executors outlive their driver until they notice its end. These workers wait inside a data file until the
test continues them, and they ignore the termination signal of Spark.
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
from lakehouse.core.operations.write import staged
from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import OutputFile
from lakehouse.core.table.table import Table
from tests.support.killed import BASE, RECOVERY, base_table, batch, leftovers, rows_of
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
WORKERS = 2
# The start of Spark may be slow on a busy machine.
DEADLINE_S = 300
# Most of the time is the start of the JVM, so optimizing compilers do not help.
SESSION = {
    "spark.master": f"local[{WORKERS}]",
    "spark.task.maxFailures": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: Which process is killed, and whether the workers continue after the next writer rolled the write back.
WAYS = (("both", True), ("jvm", False), ("python", True))


class HaltingStorage(LocalStorage):
    """A storage that finishes no data file before the file `go` exists; waiting workers create a file too."""

    def open_output(self, path: str) -> OutputFile:
        """Return a file whose `close` waits."""
        inner = super().open_output(path)
        return _Halting(inner, Path(self.root).parent) if path.endswith(".parquet") else inner


class _Halting(PassingOutput):
    def __init__(self, inner: OutputFile, beside: Path) -> None:
        super().__init__(inner)
        self.beside = beside

    def close(self) -> None:
        """Report that the worker is here, wait, and finish the file."""
        if self.closed:
            return
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        (self.beside / f"{os.getpid()}.writing").touch()
        while not (self.beside / "go").exists():
            time.sleep(0.05)
        try:
            # The rollback has also deleted the unfinished file.
            self.inner.close()
        finally:
            (self.beside / f"{os.getpid()}.done").touch()


def write_with_spark(place: str) -> None:
    """Run the driver of a job that inserts rows of several partitions by several workers."""
    from lakehouse.spark.session import job_session

    # Workers write the files, as for larger ones.
    staged._REWRITTEN_HERE = -1
    spark = job_session("mortal", SESSION)
    columns = ("concat('s', id) id", "concat('s', id % 4) p", "id v", "id ts", "false _hoodie_is_deleted")
    frame = spark.range(0, 400, 1, 1).selectExpr(*columns)
    Table.open(place, env=Env(storage=HaltingStorage(place))).upsert(frame)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver whose workers wait in their data files; all of its processes are ended afterwards."""
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
    """Kill the JVM, the Python driver, or both."""
    (jvm,) = [p for p in psutil.Process(driver.pid).children(recursive=True) if p.name() == "java"]
    if whom != "jvm":
        os.kill(driver.pid, signal.SIGKILL)
    if whom != "python":
        jvm.kill()
    driver.wait(DEADLINE_S)


@pytest.mark.parametrize(("whom", "late"), WAYS if os.environ.get("LAKEHOUSE_KILLS") == "all" else WAYS[:1])
def test_workers_that_outlive_their_driver_change_nothing_visible(
    whom: str, late: bool, driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    place = str(tmp_path / "table")
    storage = LocalStorage(place)
    workers = [psutil.Process(int(path.stem)) for path in tmp_path.glob("*.writing")]
    _kill(driver, whom)
    assert all(worker.is_running() for worker in workers), "workers outlive the driver"
    assert rows_of(storage) == BASE
    if not late:
        _continue(tmp_path, workers)
    Table.open(place).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**BASE, **RECOVERY}
    if late:
        _continue(tmp_path, workers)
        assert rows_of(storage) == {**BASE, **RECOVERY}
        # Only a listing of the whole table finds files that were written after the rollback of their write.
        Table.open(place, options={"lakehouse.clean.orphans.hours": "0"}).services.orphans(remove=True)
    Table.open(place).upsert(batch({("e", "e1"): 3}))
    assert rows_of(storage) == {**BASE, **RECOVERY, ("e", "e1"): 3}
    assert leftovers(storage) == []


def _continue(tmp_path: Path, workers: list[psutil.Process]) -> None:
    (tmp_path / "go").touch()
    psutil.wait_procs(workers, timeout=DEADLINE_S)
    assert len(list(tmp_path.glob("*.done"))) >= WORKERS
