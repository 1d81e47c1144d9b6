"""Describes the process of a job's task. The driver watches that process, and ends when the task has ended."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from lakehouse.spec.contracts.document import Document

#: Environment variable with the task of a job; the operator sets it.
TASK = "LAKEHOUSE_TASK"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProcess(Document):
    """The processes of a task and its heartbeat.

    Attributes:
        place: Host and PID namespace of the processes.
        pids: Ids of the processes. The task has ended when one of them has ended.
        started: Start times of the processes in the same order; an entry is empty if the system does not show it. They
            detect that a new process got the id of an ended one.
        heartbeat: Address of a document next to the job's report. The task changes its content.
        token: Submission id, with which the heartbeat starts. The job ends if the heartbeat has another one.
        lost_after_s: Seconds without a heartbeat after which a job on another host ends.
    """

    place: str
    pids: tuple[int, ...]
    started: tuple[str, ...]
    heartbeat: str
    token: str = ""
    lost_after_s: int = 120

    @classmethod
    def of(cls, pids: tuple[int, ...], heartbeat: str | Path) -> Self:
        """Describe a task by its processes on this host."""
        started = tuple(process_start(pid) or "" for pid in pids)
        return cls(place=process_place(), pids=pids, started=started, heartbeat=str(heartbeat))

    @classmethod
    def of_submission(cls, token: str, heartbeat: str, *, lost_after_s: int) -> Self:
        """Describe a task whose job must survive the processes of the task, because a retry waits for it again."""
        return cls(place="", pids=(), started=(), heartbeat=heartbeat, token=token, lost_after_s=lost_after_s)

    @property
    def text(self) -> str:
        """Encode the document as the value of an environment variable, without characters that a shell interprets."""
        return quote(self.to_json(), safe="")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode the value of the environment variable; raise UserError if it is invalid."""
        return cls.from_json(unquote(text))

    @property
    def is_here(self) -> bool:
        """Whether the processes run on the host and in the PID namespace of this process."""
        return self.place == process_place()

    @property
    def has_ended(self) -> bool:
        """Whether one of the processes has ended. The processes must run on this host."""
        return any(process_start(pid) != start for pid, start in zip(self.pids, self.started, strict=True))


def process_place() -> str:
    """Return the host and the PID namespace of this process, or only the host if the system has no namespaces."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {namespace}"


def process_start(pid: int) -> str | None:
    """Return the start time of a process in ticks; empty if it is unknown, None if the process has ended."""
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return ""
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in parentheses and may contain spaces. A zombie has ended.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
