"""Long-running reader processes in Spark's environment. Each process runs reads of some tables, one after the other.

    take    the process that last read the table; or an idle one; or a new one, up to a limit; or wait
    ask     write one line, read one line; a process that is too slow or uses too much memory is killed
    give    the process is idle until its next request, and exits by itself after some minutes

If a process ends before it answers, for example because the kernel killed it, the read is retried once, because reads
change nothing. A process is replaced if the code or the environment of the commands has changed. If the API server
ends, its processes reach the end of their input and exit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import select
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.spec.contracts.reader import ReaderAnswer, ReaderRequest

log = logging.getLogger(__name__)

#: Seconds between two checks of the clock and of the process memory during a wait for an answer.
_STEP_S = 0.5
_READ = 1 << 20
#: Maximum number of table names that are remembered per process. The process keeps fewer tables open.
_TABLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Limits of the reader processes.

    Attributes:
        processes: Maximum number of concurrent processes.
        answer_s: Time limit of a read in seconds.
        idle_s: Seconds after which an idle process ends.
        memory_bytes: Maximum resident memory of a process. A process above it is killed.
    """

    processes: int = 3
    answer_s: float = 60
    idle_s: float = 600
    memory_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCommand:
    """Command that starts a reader process: its Python, the root folder of the package, and its environment."""

    python: str
    package: str
    environ: Mapping[str, str]

    @property
    def version(self) -> str:
        """Return a string that changes when the code or the environment changes, so that processes must be replaced."""
        whole = hashlib.sha256(repr((self.python, sorted(self.environ.items()))).encode())
        for folder, folders, names in os.walk(self.package):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                try:
                    status = os.stat(Path(folder, name))
                except FileNotFoundError:
                    # The package is being replaced, so the next call returns a different version again.
                    continue
                whole.update(f"{folder}/{name} {status.st_mtime_ns} {status.st_size}\n".encode())
        return whole.hexdigest()


class ReaderEndedError(RetryableError):
    """A reader process ended before it answered."""


class _Reader:
    """One reader process. Only one thread uses it at a time."""

    def __init__(self, command: ReaderCommand, version: str, limits: ReaderLimits) -> None:
        self.version, self._limits = version, limits
        self.tables: OrderedDict[str, None] = OrderedDict()
        #: The table that the process reads now or read last.
        self.current = ""
        words = [command.python, "-m", "lakehouse.cli.reader", str(limits.idle_s)]
        try:
            self.process = subprocess.Popen(
                words, env=dict(command.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except (OSError, ValueError) as error:
            raise LakehouseError(f"a reader process cannot be started: {error}") from error

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: ReaderRequest, clock: WaitClock) -> ReaderAnswer:
        """Send a request to the process and return its answer. After an error, the process has ended."""
        name = " ".join(request.words[:2])
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{request.to_json()}\n".encode())
            return ReaderAnswer.from_json(self._line(name, clock))
        except OSError as error:
            self.end()
            raise ReaderEndedError(f"lakehouse {name}: {self._ending()}") from error
        except BaseException:
            self.end()
            raise

    def _line(self, name: str, clock: WaitClock) -> bytes:
        assert self.process.stdout is not None
        descriptor, deadline, parts = self.process.stdout.fileno(), clock.monotonic_s() + self._limits.answer_s, []
        while True:
            if select.select([descriptor], [], [], _STEP_S)[0]:
                part = os.read(descriptor, _READ)
                if not part:
                    raise ReaderEndedError(f"lakehouse {name}: {self._ending()}")
                parts.append(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
            if clock.monotonic_s() > deadline:
                raise RetryableError(
                    f"lakehouse {name} took longer than {self._limits.answer_s:g} s and was ended; try again later"
                )
            self._check_memory(name)

    def _check_memory(self, name: str) -> None:
        used = self.memory_bytes()
        if used > self._limits.memory_bytes:
            raise LakehouseError(
                f"lakehouse {name} used {used / 1e9:.1f} GB of memory and was ended; a reader of pages may use "
                f"{self._limits.memory_bytes / 1e9:.1f} GB. Run the command in a shell"
            )

    def memory_bytes(self) -> int:
        """Return the resident memory of the process in bytes, or 0 if it has ended."""
        try:
            return int(psutil.Process(self.process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def end(self) -> None:
        """Kill the process if it is running, and wait for its end."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _ending(self) -> str:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return (
            f"its reader process {how}, perhaps because memory was exhausted; see the log of the API server, "
            "and try again"
        )


@dataclass(slots=True, kw_only=True)
class Readers:
    """The reader processes of this API server.

    Args:
        command: Returns the current command that starts a process.
        clock: Clock for time limits.
        limits: Limits of the reader processes.
        version_s: Seconds for which the version of the code is cached.
    """

    command: Callable[[], ReaderCommand]
    clock: WaitClock
    limits: ReaderLimits = field(default_factory=ReaderLimits)
    version_s: float = 5
    _idle: list[_Reader] = field(default_factory=list)
    _busy: list[_Reader] = field(default_factory=list)
    _free: threading.Condition = field(default_factory=threading.Condition)
    _seen: tuple[float, Mapping[str, str], str] | None = None

    def read(self, table: str, words: Sequence[str]) -> ReaderAnswer:
        """Run a read command on a table, if possible in the process that last read it.

        Raises:
            RetryableError: The read took too long, its process ended twice, or all processes are busy.
            LakehouseError: The process cannot be started, or it used too much memory.
        """
        request = ReaderRequest(words=tuple(words))
        try:
            return self._read(table, request)
        except ReaderEndedError as error:
            log.warning("%s; the read is repeated once", error)
            return self._read(table, request)

    def pids(self) -> list[int]:
        """Return the ids of the running processes."""
        with self._free:
            return [reader.process.pid for reader in (*self._idle, *self._busy) if reader.is_running]

    def end(self) -> None:
        """End the idle processes."""
        with self._free:
            for reader in self._idle:
                reader.end()
            self._idle.clear()

    def _read(self, table: str, request: ReaderRequest) -> ReaderAnswer:
        with self._taken(table) as reader:
            return reader.ask(request, self.clock)

    @contextmanager
    def _taken(self, table: str) -> Iterator[_Reader]:
        command = self.command()
        version = self._version(command)
        reader = self._take(table, command, version)
        try:
            yield reader
        finally:
            self._give(reader, table)

    def _take(self, table: str, command: ReaderCommand, version: str) -> _Reader:
        deadline = self.clock.monotonic_s() + self.limits.answer_s
        with self._free:
            while True:
                self._drop(lambda reader: not reader.is_running or reader.version != version)
                reader = self._choose(table, command, version)
                if reader is not None:
                    self._busy.append(reader)
                    return reader
                if not self._free.wait(max(0.0, deadline - self.clock.monotonic_s())):
                    raise RetryableError(
                        f"the reader processes of pages were busy for {self.limits.answer_s:g} s; try again later"
                    )

    def _choose(self, table: str, command: ReaderCommand, version: str) -> _Reader | None:
        """Choose the process for a table. Return None if all processes are busy."""
        if any(reader.current == table and reader.version == version for reader in self._busy):
            return None
        mine = next((reader for reader in self._idle if table in reader.tables), None)
        # The last process was used most recently. The first one is idle longest, so its open tables are probably not
        # needed.
        reader = mine or next(iter(self._idle), None)
        if reader is not None:
            self._idle.remove(reader)
        elif len(self._busy) < self.limits.processes:
            reader = _Reader(command, version, self.limits)
        if reader is not None:
            reader.current = table
            reader.tables[table] = None
            reader.tables.move_to_end(table)
            while len(reader.tables) > _TABLES:
                reader.tables.popitem(last=False)
        return reader

    def _give(self, reader: _Reader, table: str) -> None:
        with self._free:
            self._busy.remove(reader)
            if reader.is_running and reader.memory_bytes() > self.limits.memory_bytes:
                log.warning("the reader process %s of %s is too large and is ended", reader.process.pid, table)
                reader.end()
            if reader.is_running:
                self._idle.append(reader)
            self._free.notify_all()

    def _drop(self, is_over: Callable[[_Reader], bool]) -> None:
        for reader in [reader for reader in self._idle if is_over(reader)]:
            self._idle.remove(reader)
            reader.end()

    def _version(self, command: ReaderCommand) -> str:
        now, seen = self.clock.monotonic_s(), self._seen
        if seen is not None and now - seen[0] < self.version_s and seen[1] == command.environ:
            return seen[2]
        version = command.version
        self._seen = now, command.environ, version
        return version


def reader_command(arguments: Sequence[str], environ: Mapping[str, str]) -> ReaderCommand:
    """Derive the command of reader processes from the Python and the script that run lakehouse commands."""
    python, script = arguments[0], arguments[1]
    if not Path(script).exists():
        raise UserError(f"{script} is missing; `lakehouse doctor` checks the environment of jobs")
    return ReaderCommand(python=python, package=str(Path(script).parent), environ=environ)
