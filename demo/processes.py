"""Processes of the demo: sessions of processes, free ports, and one demo at a time."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import UserError

HOST = "127.0.0.1"
#: The variable of all processes that a demo starts, with its home. A shell that sources the file `env` has none.
PROCESS_OF = "LAKEHOUSE_DEMO_PROCESS"
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_S = 20.0
_POLL_S = 0.1


def free_port(preferred: int | None = None) -> int:
    """Return `preferred` if nothing listens there, otherwise another free port of 127.0.0.1."""
    if preferred is not None:
        with suppress(OSError), socket.create_server((HOST, preferred)):
            return preferred
    with socket.create_server((HOST, 0)) as opened:
        return int(opened.getsockname()[1])


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the lock of a demo's home. The kernel releases it when the process ends.

    Raises:
        UserError: Another process uses this home.
    """
    path = home / "lock"
    with path.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip()
            raise UserError(
                f"process {holder} runs the demo in {home} already (`make demo` or `make ui`); end it first"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM, and the end of the terminal, like Ctrl-C in the block, so that the demo's processes are ended.

    Only the first signal interrupts. A second one would interrupt the end of the processes, and leave some behind.
    """
    before = {number: signal.getsignal(number) for number in _INTERRUPTS}

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in _INTERRUPTS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _INTERRUPTS:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def session_members(leader: int) -> list[int]:
    """Return the ids of the running processes in the session of `leader`, without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # The fields follow the command name, which is in parentheses: state, parent, group, session.
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return members


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it is not readable."""
    try:
        data = (Path("/proc") / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in data.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def end_session(leader: int, clock: WaitClock) -> None:
    """End all processes of a session: SIGTERM, and SIGKILL for those that are still there after 20 seconds.

    A signal to the leader only would not end its children, and tasks of Airflow have process groups of their own.
    """
    _end(lambda: session_members(leader), clock)


def end_processes_of(home: Path, clock: WaitClock) -> None:
    """End the processes of a demo that left its session, such as the job of a stream, as `end_session` does."""
    _end(lambda: processes_of(home), clock)


def processes_of(home: Path) -> list[int]:
    """Return the ids of the running processes that a demo started, in any session, without this process."""
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    own = os.getpid()
    return [pid for pid in numbers if pid != own and environment_of(pid).get(PROCESS_OF) == str(home)]


def _end(running: Callable[[], list[int]], clock: WaitClock) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in running():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = clock.monotonic_s() + _STOP_S
        while running() and clock.monotonic_s() < deadline:
            clock.sleep(_POLL_S)
