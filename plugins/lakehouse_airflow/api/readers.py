"""Reader processes that stay: each runs the reads of some tables in Spark's environment, one after the other.

    take    the process that read the table last; else an idle one; else a new one, up to a number; else wait
    ask     one line to the process, one line back; a process that answers too late or grows too large is killed
    give    the process is idle until its next request, and ends by itself after some minutes

A process that ended before it answered, for example because the kernel killed it, is started again once, because reads
change nothing. A process is replaced if the code or the environment of the commands changed. If the API server ends,
its processes read the end of their input and end, too.
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

#: Steps in which a wait for an answer looks at the clock and at the memory of the process.
_STEP_S = 0.5
_READ = 1 << 20
#: Names of tables that a process is known for; it keeps fewer of them open.
_TABLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Bounds of the processes.

    Attributes:
        processes: Processes at the same time.
        answer_s: Seconds in which a read must be answered.
        idle_s: Seconds after which an idle process ends.
        memory_bytes: Resident memory of a process; one that has more is killed.
    """

    processes: int = 3
    answer_s: float = 60
    idle_s: float = 600
    memory_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCommand:
    """How a process is started: its Python, the root folder of the package, and its environment."""

    python: str
    package: str
    environ: Mapping[str, str]

    @property
    def version(self) -> str:
        """A text that differs if a process must be replaced: for other code or another environment."""
        whole = hashlib.sha256(repr((self.python, sorted(self.environ.items()))).encode())
        for folder, folders, names in os.walk(self.package):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                try:
                    status = os.stat(Path(folder, name))
                except FileNotFoundError:
                    # The package is being replaced; the next look differs again.
                    continue
                whole.update(f"{folder}/{name} {status.st_mtime_ns} {status.st_size}\n".encode())
        return whole.hexdigest()


class ReaderEndedError(RetryableError):
    """A process ended before it answered."""


class _Reader:
    """One process. It is used by one thread at a time."""

    def __init__(self, command: ReaderCommand, version: str, limits: ReaderLimits) -> None:
        self.version, self._limits = version, limits
        self.tables: OrderedDict[str, None] = OrderedDict()
        #: The table that it reads now, or read last.
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
        """Return the answer of the process; after an error, the process has ended."""
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
        """Return the resident memory of the process; 0 if it has ended."""
        try:
            return int(psutil.Process(self.process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def end(self) -> None:
        """Kill the process, if it runs, and wait for its end."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _ending(self) -> str:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its reader process {how}, perhaps for lack of memory; see the log of the API server, and try again"


@dataclass(slots=True, kw_only=True)
class Readers:
    """The reader processes of this API server.

    Args:
        command: Returns how a process is started now.
        clock: Clock of waits.
        limits: Bounds of the processes.
        version_s: Seconds for which the version of the code is not looked up again.
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
        """Run a command that reads a table, in the process that read it last.

        Raises:
            RetryableError: It took too long, the process ended twice, or all processes stay busy.
            LakehouseError: The process cannot be started, or it used too much memory.
        """
        request = ReaderRequest(words=tuple(words))
        try:
            return self._read(table, request)
        except ReaderEndedError as error:
            log.warning("%s; the read is repeated once", error)
            return self._read(table, request)

    def pids(self) -> list[int]:
        """Return the numbers of the processes that run."""
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
        """Return the process for a table; None if it has to wait for one."""
        if any(reader.current == table and reader.version == version for reader in self._busy):
            return None
        mine = next((reader for reader in self._idle if table in reader.tables), None)
        # The last one was used most recently; the first one has waited longest, and its tables are needed least.
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
    """Return how a process is started, from the Python and the script of commands of lakehouse."""
    python, script = arguments[0], arguments[1]
    if not Path(script).exists():
        raise UserError(f"{script} is missing; `lakehouse doctor` checks the environment of jobs")
    return ReaderCommand(python=python, package=str(Path(script).parent), environ=environ)
