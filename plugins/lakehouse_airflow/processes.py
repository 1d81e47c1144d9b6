"""End all processes of a Spark job.

spark-submit starts a tree of processes: a JVM, its child the Python driver, and the driver's Python workers. A driver
whose JVM is killed continues and can still commit. Such a driver is no longer a descendant of spark-submit. Therefore
all processes of a job also inherit an environment variable with the job's id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic, sleep  # noqa: TID251 -- it waits for processes of the machine to end

import psutil

log = logging.getLogger(__name__)

#: Environment variable of every process of a job; its value is the job's id.
JOB = "LAKEHOUSE_JOB"
_POLL_S = 0.05


def end_job(job_id: str, pid: int | None = None, *, grace_s: float = 3.0) -> int:
    """End the processes of a job on this host and return their number.

    These are the process `pid`, its descendants, and all processes whose environment has the `job_id`. They get
    SIGTERM, and SIGKILL after `grace_s` seconds: Airflow kills a task 5 s after SIGTERM.
    """
    processes = _find(job_id, pid)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    if _running(processes, grace_s):
        # The processes may have started child processes in the meantime.
        remaining = _find(job_id, pid) | _running(processes, 0)
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in _running(remaining, grace_s):
            log.error("process %s of job %s is still running after SIGKILL", process.pid, job_id)
    if processes:
        log.info("ended %s processes of job %s", len(processes), job_id)
    return len(processes)


def _find(job_id: str, pid: int | None) -> set[psutil.Process]:
    processes: set[psutil.Process] = set()
    if pid is not None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            processes |= {root, *root.children(recursive=True)}
    for process in psutil.process_iter():
        # The environment of other users' processes is not readable.
        with suppress(psutil.Error):
            if process.environ().get(JOB) == job_id:
                processes.add(process)
    return {process for process in processes if _is_running(process)}


def _running(processes: Iterable[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Wait until all processes have ended, at most `timeout_s` seconds; return those that are running."""
    deadline = monotonic() + timeout_s
    alive = {process for process in processes if _is_running(process)}
    while alive and monotonic() < deadline:
        sleep(_POLL_S)
        alive = {process for process in alive if _is_running(process)}
    return alive


def _is_running(process: psutil.Process) -> bool:
    # A zombie has ended. Waiting for it here would take its exit code from its parent.
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
