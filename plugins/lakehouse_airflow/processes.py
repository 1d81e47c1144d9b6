"""End a Spark job with all its processes.

spark-submit is a tree: a JVM, below it the Python driver, below that Python workers. Killing the JVM alone orphans the
driver, which then runs on, to the commit. An orphan is no longer found through its parents, so the processes of a job
are also known by an environment variable, which all of them inherit.
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
    """End the processes of a job on this machine: those below and including `pid`, and those marked with `job_id`.

    Ask first, and kill what still lives after `grace_s` seconds (Airflow kills a task 5 s after it asked). Returns how
    many processes there were.
    """
    found = _find(job_id, pid)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    if _living(found, grace_s):
        # Those asked may have started others meanwhile, and whoever is not theirs bears the mark.
        remaining = _find(job_id, pid) | _living(found, 0)
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in _living(remaining, grace_s):
            log.error("process %s of job %s is still there after SIGKILL", process.pid, job_id)
    if found:
        log.info("ended %s processes of job %s", len(found), job_id)
    return len(found)


def _find(job_id: str, pid: int | None) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    if pid is not None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found |= {root, *root.children(recursive=True)}
    for process in psutil.process_iter():
        # Processes of others do not show their environment; ours do.
        with suppress(psutil.Error):
            if process.environ().get(JOB) == job_id:
                found.add(process)
    return {process for process in found if _lives(process)}


def _living(processes: Iterable[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Wait until all are gone or the time is over; return those that live."""
    deadline = monotonic() + timeout_s
    alive = {process for process in processes if _lives(process)}
    while alive and monotonic() < deadline:
        sleep(_POLL_S)
        alive = {process for process in alive if _lives(process)}
    return alive


def _lives(process: psutil.Process) -> bool:
    # A zombie is over; its parent reaps it. Waiting for it here would take its exit code away from the parent.
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
