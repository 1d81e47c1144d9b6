"""End a job whose Airflow task is gone, so that it does not commit after Airflow has marked the run as failed.

    the task runs on this host     check its processes each second: killed by SIGKILL, they cannot end their job
    it runs on another host        read its documents in the store of reports: the driver runs in cluster mode

The task is gone if the heartbeat did not change for `lost_after_s`, if it has another token because a retry submitted
the job again, or if there is a stop request, because a user cleared the task or set its state.

A driver in cluster mode writes its report where the task reads it, so both need a common store of reports. Without one
the job is refused before it starts: it would commit, and its task would fail without a report.

A task that is gone ends the job by SIGTERM, as a user does: an active write is rolled back. A job that is still running
after GRACE_S gets the signal again, because a stream finishes its commit first, and then SIGKILL.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping

from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.jobs.report_stores import open_report_store
from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse.spec.report_store import JobDocument, JobDocuments
from lakehouse.spec.reports_folder import is_folder

logger = logging.getLogger(__name__)

#: Seconds between two polls of processes and files.
POLL_S = 1.0
#: Seconds between two polls of a remote store. Each poll is a request.
STORE_POLL_S = 15.0
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
    if task.is_here:
        is_gone, pause_s = _looks_at_processes(task), POLL_S
    else:
        pause_s = POLL_S if is_folder(task.heartbeat) else STORE_POLL_S
        is_gone = _looks_at_store(_store_with_heartbeat(task, environ), task, pause_s)
    watch = threading.Thread  # noqa: TID251 -- it ends this process, so that nothing waits for it
    watch(target=_watch, args=(is_gone, pause_s), name="watch of the task", daemon=True).start()


def _store_with_heartbeat(task: TaskProcess, environ: Mapping[str, str]) -> JobDocuments:
    """Return the store of the task's documents; raise UserError if it has no heartbeat of the task."""
    store = open_report_store(task.heartbeat, environ)
    if JobDocument.HEARTBEAT not in store.read(JobDocument.HEARTBEAT):
        raise UserError(
            f"the driver runs on another host than its task, and cannot read {task.heartbeat} of the task. The task "
            "could not read the report of the driver either. Set LAKEHOUSE_REPORTS to a store that both reach: a "
            "folder that both hosts share, a URL such as s3://bucket/reports, or catalog",
            path=task.heartbeat,
        )
    return store


def _looks_at_processes(task: TaskProcess) -> Callable[[], bool]:
    return lambda: task.has_ended


def _looks_at_store(store: JobDocuments, task: TaskProcess, pause_s: float) -> Callable[[], bool]:
    """Return a function that is called every `pause_s` seconds, and that returns True when the job must end."""
    seen, unchanged = "", 0

    def look() -> bool:
        nonlocal seen, unchanged
        try:
            documents = store.read(JobDocument.HEARTBEAT, JobDocument.STOP)
        except LakehouseError as error:
            logger.warning("the heartbeat of the task cannot be read: %s", error)
            documents = {}
        stop, content = documents.get(JobDocument.STOP), documents.get(JobDocument.HEARTBEAT)
        if stop is not None and stop == task.token:
            return True
        if content is not None and task.token and not content.startswith(task.token):
            return True
        unchanged = unchanged + 1 if content in (None, seen) else 0
        seen = seen if content is None else content
        return unchanged * pause_s >= task.lost_after_s

    return look


def _watch(is_gone: Callable[[], bool], pause_s: float) -> None:
    pause = threading.Event()
    while not is_gone():
        pause.wait(pause_s)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        logger.error("the Airflow task of this job is gone; the job ends by %s and commits nothing more", number.name)
        # Python handles signals in the main thread, which may wait for an answer of the JVM.
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        pause.wait(GRACE_S)
