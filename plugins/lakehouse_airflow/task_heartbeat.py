"""Heartbeat of a task. Its job uses it to detect that the task was killed, because a killed task cannot end the job.

Airflow marks a task as failed when its process is killed, for example by the out-of-memory killer, or when its
supervisor sends no heartbeats. Neither ends spark-submit. The job watches the processes of its task, and in cluster
mode, where they run on another host, this heartbeat (`lakehouse.platform.jobs.task_watch`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse.spec.report_store import JobDocument
from lakehouse.spec.reports_folder import is_folder

log = logging.getLogger(__name__)

#: Seconds between two heartbeats.
BEAT_S = 10.0
_COMMS, _TASK_RUNNER = "airflow.sdk.execution_time.comms", "airflow.sdk.execution_time.task_runner"


def task_variables(report: str) -> dict[str, str]:
    """Return the environment variable with which a job on this host watches this process.

    `report` is the address of the job's report.
    """
    return {TASK: TaskProcess.of(_processes(), _heartbeat_path(report)).text}


@contextmanager
def heartbeat(report: str) -> Iterator[None]:
    """Write heartbeats next to the report of a job on this host, for the duration of a `with` block.

    A job whose report is not in a folder only watches the processes of the task.
    """
    if not is_folder(report):
        yield
        return
    path, over = Path(_heartbeat_path(report)), threading.Event()
    _beat(path, 0)

    def beat() -> None:
        number = 0
        while not over.wait(BEAT_S):
            number += 1
            _beat(path, number)

    thread = threading.Thread  # noqa: TID251 -- Airflow's environment has no timers of the core
    writer = thread(target=beat, name="heartbeat of the task", daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
        path.unlink(missing_ok=True)


def _beat(path: Path, number: int) -> None:
    try:
        path.write_text(str(number), encoding="ascii")
    except OSError as error:
        log.warning("the heartbeat of the task could not be written: %s", error)


def _heartbeat_path(report: str) -> str:
    return f"{report.rpartition('/')[0]}/{JobDocument.HEARTBEAT.value}"


def _processes() -> tuple[int, ...]:
    """Return the ids of this process and of its supervisor, if there is one.

    The supervisor sends Airflow's heartbeats.
    """
    comms = getattr(sys.modules.get(_TASK_RUNNER), "SUPERVISOR_COMMS", None)
    decoder = getattr(sys.modules.get(_COMMS), "CommsDecoder", None)
    is_supervised = decoder is not None and isinstance(comms, decoder)
    return (os.getpid(), os.getppid()) if is_supervised else (os.getpid(),)
