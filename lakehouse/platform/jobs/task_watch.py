"""End a job whose Airflow task is gone, so that it does not commit after Airflow has marked the run as failed.

    the task runs on this host     check its processes each second: killed by SIGKILL, they cannot end their job
    it runs on another host        check its heartbeat, a file next to the report: the driver runs in cluster mode

A driver in cluster mode writes its report where the task reads it, so both need a common folder of reports. Without one
the job is refused before it starts: it would commit, and its task would fail without a report.

A task that is gone ends the job by SIGTERM, as a user does: an active write is rolled back. A job that is still running
after GRACE_S gets the signal again, because a stream finishes its commit first, and then SIGKILL.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from lakehouse.errors import UserError
from lakehouse.spec.contracts.task_process import TASK, TaskProcess

logger = logging.getLogger(__name__)

#: Seconds between two polls, and polls with an unchanged heartbeat after which the task is gone.
POLL_S = 1.0
LOST_LOOKS = 120
#: Seconds between two signals.
GRACE_S = 20.0


def watch_task(environ: Mapping[str, str]) -> None:
    """Start a thread that ends this process when its task is gone; do nothing for a job without a task.

    Raises:
        UserError: The task runs on another host, and its heartbeat cannot be read here.
    """
    text = environ.get(TASK)
    if not text:
        return
    task = TaskProcess.from_text(text)
    if not task.is_here:
        _require_heartbeat(task)
    looks = _looks_at_processes(task) if task.is_here else _looks_at_heartbeat(Path(task.heartbeat))
    watch = threading.Thread  # noqa: TID251 -- it ends this process, so that nothing waits for it
    watch(target=_watch, args=(looks,), name="watch of the task", daemon=True).start()


def _require_heartbeat(task: TaskProcess) -> None:
    if _content(Path(task.heartbeat)) is None:
        raise UserError(
            f"the driver runs on another host than its task ({task.place}), and cannot read {task.heartbeat} of the "
            "task. The task could not read the report of the driver either. Remove deploy-mode cluster from the Spark "
            "connection, or set LAKEHOUSE_REPORTS to a folder that both hosts share",
            path=task.heartbeat,
        )


def _looks_at_processes(task: TaskProcess) -> Callable[[], bool]:
    return lambda: task.has_ended


def _looks_at_heartbeat(path: Path) -> Callable[[], bool]:
    """Return a function that returns True after LOST_LOOKS calls with an unchanged heartbeat."""
    seen, unchanged = _content(path), 0

    def look() -> bool:
        nonlocal seen, unchanged
        content = _content(path)
        unchanged = unchanged + 1 if content in (None, seen) else 0
        seen = seen if content is None else content
        return unchanged >= LOST_LOOKS

    return look


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _watch(is_gone: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not is_gone():
        pause.wait(POLL_S)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        logger.error("the Airflow task of this job is gone; the job ends by %s and commits nothing more", number.name)
        # Python handles signals in the main thread, which may wait for an answer of the JVM.
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        pause.wait(GRACE_S)
