"""Trigger that watches the stream of a table through the files next to its lease.

    poll ──► the lease is held ──► poll again after `poll_s`, log each change of the last commit and of the lag
       ├──► status of an ended stream ──► event `ended` with its report
       ├──► the lease expired, or the process ended without a lease ──► event `died`
       └──► not ended by the deadline ──► event `overdue`

A poll is a short process in Spark's environment, because the storage clients are installed there. The trigger has no
state: after a restart of the triggerer it continues with the next poll. If a user clears the task or sets its state,
the trigger requests the end of the stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psutil

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.contracts.job import STORAGE_SETTINGS
from lakehouse.spec.contracts.stream import (
    StreamEnd,
    StreamEvent,
    StreamState,
    StreamStatus,
    StreamWatch,
    progress_text,
)
from lakehouse_airflow.compat import BaseTrigger, TriggerEvent, timezone
from lakehouse_airflow.trigger_commands import run_in_trigger

#: Running stop requests. They are stored here, because the event loop keeps no reference to its tasks.
_ASKING: set[asyncio.Task[None]] = set()


class StreamTrigger(BaseTrigger):
    """Watch a stream until it ends, crashes, or is overdue. `watch` is a StreamWatch as a mapping."""

    def __init__(self, *, watch: dict[str, Any]) -> None:
        super().__init__()
        self.watch = StreamWatch.from_mapping(watch)
        self._followed = self.watch.run_id
        self._shown = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that rebuild this trigger in the triggerer."""
        return f"{StreamTrigger.__module__}.{StreamTrigger.__qualname__}", {"watch": self.watch.to_mapping()}

    def __repr__(self) -> str:
        """Return a description for logs without the storage settings, which may be secret."""
        return f"<{StreamTrigger.__qualname__} table={self.watch.table}>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the stream until its end, and yield one StreamEvent."""
        while True:
            event = await self._look()
            if event is not None:
                yield TriggerEvent(event.to_mapping())
                return
            await asyncio.sleep(self.watch.poll_s)

    async def on_kill(self) -> None:
        """Request that the stream ends after its commit, because a user cleared the task or set its state.

        Airflow 3.3 cancels a trigger again each second while this method runs. The request continues without it.
        """
        asking = asyncio.create_task(self._ask_to_end())
        _ASKING.add(asking)
        asking.add_done_callback(_ASKING.discard)
        await asyncio.shield(asking)

    async def _ask_to_end(self) -> None:
        words = ["ingest", "stop", *table_words(self.watch.table, self.watch.input), "--run-id", self._followed]
        exit_code, _, errors = await run_in_trigger(words, storage_variables(self.watch.storage))
        if exit_code:
            self.log.error("the end of the stream %s could not be requested: %s", self._followed, errors.strip())
        else:
            self.log.warning("the stream %s ends after the current commit", self._followed)

    async def _look(self) -> StreamEvent | None:
        words = ["ingest", "status", *table_words(self.watch.table, self.watch.input), "--output", "json"]
        now_ms = _now_ms()
        try:
            exit_code, output, errors = await run_in_trigger(words, storage_variables(self.watch.storage))
            if exit_code == RetryableError.exit_code and now_ms <= self.watch.deadline_ms:
                self.log.warning("%s; looking again", errors.strip().rpartition("\n")[2])
                return None
            if exit_code:
                problem = errors.strip().rpartition("\n")[2] or f"`{' '.join(words)}` ended with {exit_code}"
                return StreamEvent(end=StreamEnd.UNREADABLE, run_id=self._followed, problem=problem)
            state = StreamState.from_json(output)
        except UserError as error:
            return StreamEvent(end=StreamEnd.UNREADABLE, run_id=self._followed, problem=str(error))
        self._show(state)
        return judge(state, self.watch, now_ms=now_ms, is_gone=_is_gone(self.watch))

    def _show(self, state: StreamState) -> None:
        """Log the progress of the stream if it has changed, with at most one line per poll."""
        status = state.status
        if status is None or not _is_watched(status, self.watch):
            return
        if status.run_id != self._followed:
            self.log.info("a different stream now writes to the table, and is watched instead: %s", status.run_id)
            self._followed = status.run_id
        text = progress_text(status)
        if text != self._shown:
            self._shown = text
            self.log.info("table %s: %s", state.table, text)


def judge(state: StreamState, watch: StreamWatch, *, now_ms: int, is_gone: bool) -> StreamEvent | None:
    """Return the event for a state of the stream, or None to poll again.

    `is_gone` means that its spark-submit has ended.
    """
    status = state.status
    run_id = watch.run_id if status is None else status.run_id
    if state.alive:
        if now_ms <= watch.deadline_ms:
            return None
        return StreamEvent(end=StreamEnd.OVERDUE, run_id=run_id, problem="the stream did not end in time")
    if status is not None and _is_watched(status, watch):
        if status.ended:
            return StreamEvent(end=StreamEnd.ENDED, run_id=run_id, report=status.report)
        problem = f"the process of the stream on host {state.host or 'unknown'} ended without a report"
        return StreamEvent(end=StreamEnd.DIED, run_id=run_id, report=status.report, problem=problem)
    if is_gone:
        problem = "the process ended before the stream held its lease"
    elif now_ms > watch.start_by_ms:
        problem = "the stream did not acquire its lease in time"
    else:
        return None
    return StreamEvent(end=StreamEnd.DIED, run_id=watch.run_id, problem=problem)


def table_words(table: str, input: str) -> list[str]:
    """Return the command arguments that select the table of a stream."""
    return ["--table", table, *(["--input", input] if input else [])]


def storage_variables(settings: str) -> dict[str, str]:
    """Return the environment variable with the storage settings."""
    return {STORAGE_SETTINGS: settings}


def process_place() -> str:
    """Return the host and the PID namespace of this process, or an empty string if they are unknown."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _is_watched(status: StreamStatus, watch: StreamWatch) -> bool:
    """Return whether a status belongs to the watched stream or to a stream that replaced it."""
    return status.run_id == watch.run_id or status.written_ms > watch.since_ms


def _is_gone(watch: StreamWatch) -> bool:
    """Return whether the spark-submit process ran on this host and has ended."""
    if not watch.place or watch.place != process_place():
        return False
    try:
        process = psutil.Process(watch.pid)
        return bool(process.create_time() != watch.created or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _now_ms() -> int:
    return int(timezone.utcnow().timestamp() * 1000)
