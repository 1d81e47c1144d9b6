"""Identify processes, and detect whether a process of this host is still running.

A process id is unique only within one PID namespace of one running kernel. Containers with the same host name use the
same numbers for different processes, and a kernel reuses numbers. A process is therefore identified by host name, boot
id of the kernel, namespaces, number and start time. Whether a process in another namespace runs, or one without all of
these fields, cannot be observed from here: only its lease shows whether it is active.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Fields of /proc/<pid>/stat, counted from the one after the name in parentheses.
_STARTED = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """The identity of a process. `boot`, `namespace` and `started` are empty if the system does not provide them."""

    host: str
    pid: int
    boot: str = ""
    namespace: str = ""
    started: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields of the identity for a JSON record."""
        return {
            "host": self.host,
            "pid": self.pid,
            "boot": self.boot,
            "namespace": self.namespace,
            "started": self.started,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProcessId:
        """Return the process identity in a JSON record.

        Raises KeyError, TypeError or ValueError if the record does not name one.
        """
        identity = {name: str(record.get(name, "")) for name in ("boot", "namespace", "started")}
        return cls(host=str(record["host"]), pid=int(record["pid"]), **identity)

    def is_comparable(self, other: ProcessId) -> bool:
        """Return whether both processes belong to one PID namespace of one kernel and have a start time."""
        place = (self.host, self.boot, self.namespace)
        return all((*place, self.started, other.started)) and place == (other.host, other.boot, other.namespace)


class Processes(Protocol):
    """The processes of a system: this one, and whether another one still runs."""

    def current(self) -> ProcessId: ...
    def is_running(self, process: ProcessId) -> bool: ...


class SystemProcesses:
    """The operating system's processes."""

    def current(self) -> ProcessId:
        """Return this process."""
        return _this_process(os.getpid())

    def is_running(self, process: ProcessId) -> bool:
        """Return whether a process runs that is comparable with this one (`ProcessId.is_comparable`)."""
        if process.pid < 1:
            # `kill` interprets 0 and negative numbers as process groups.
            return False
        try:
            os.kill(process.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        started = _started(str(process.pid))
        return not started or started == process.started


@lru_cache(maxsize=1)
def _this_process(pid: int) -> ProcessId:
    host = socket.gethostname()
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            is_ours = file.read().split(" ", 1)[0] == str(pid)
        if not is_ours:
            # The mounted /proc belongs to another PID namespace, so its entries are other processes.
            return ProcessId(host=host, pid=pid)
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        # Start times are counted in the time namespace of the reader.
        namespace = f"{os.readlink('/proc/self/ns/pid')} {_link('/proc/self/ns/time')}".strip()
    except OSError:
        return ProcessId(host=host, pid=pid)
    return ProcessId(host=host, pid=pid, boot=boot, namespace=namespace, started=_started("self"))


def _started(pid: str) -> str:
    """Return when a process started, in clock ticks since the boot; an empty string if it is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[_STARTED] if len(fields) > _STARTED else ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
