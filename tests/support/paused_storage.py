"""A storage of workers on a cluster: it records each attempt at a data file, and holds attempts until a test continues.

A control folder has the files:

    hold          attempts wait before they finish a data file, until the file is removed
    first         the first attempt of all does not wait, so that a data file exists
    slow          the first attempt that takes this file waits until another attempt of its task has finished its file
    *.attempt     one for each begun data file: partition, attempt number and process of a Spark task
    *.finished    one for each finished data file
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext

from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import OutputFile

_PAUSE_S, _LIMIT_S = 0.05, 120


class PausedStorage(LocalStorage):
    """A local storage whose control folder is `control`, next to the folder of the table."""

    def open_output(self, path: str) -> OutputFile:
        """Return a file whose `close` waits; files of the driver and of metadata do not wait."""
        inner = super().open_output(path)
        context = TaskContext.get()
        if context is None or path.startswith(".hoodie") or not (path.endswith(".parquet") or ".log." in path):
            return inner
        task = f"{context.stageId()}-{context.partitionId()}"
        held = _Paused(inner, Path(self.root).parent / "control", task, context.taskAttemptId())
        held.begin()
        return held


class _Paused(PassingOutput):
    def __init__(self, inner: OutputFile, control: Path, task: str, attempt: int) -> None:
        super().__init__(inner)
        self.control, self.task, self.name = control, task, f"{task}-{attempt}-{os.getpid()}"

    def begin(self) -> None:
        """Record the attempt."""
        (self.control / f"{self.name}.attempt").touch()

    def close(self) -> None:
        """Wait while the test holds this attempt, then finish the file."""
        if self.closed:
            return
        deadline = time.monotonic() + _LIMIT_S
        if not _takes(self.control / "first"):
            while (self.control / "hold").exists() and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
        if _takes(self.control / "slow"):
            while not list(self.control.glob(f"{self.task}-*.finished")) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
        self.inner.close()
        (self.control / f"{self.name}.finished").touch()


def _takes(path: Path) -> bool:
    """Remove a file; return whether this process did."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Control:
    """The control folder of a test."""

    folder: Path

    def set(self, *names: str) -> None:
        """Create control files."""
        self.folder.mkdir(exist_ok=True)
        for name in names:
            (self.folder / name).touch()

    def release(self) -> None:
        """Let all attempts finish."""
        (self.folder / "hold").unlink(missing_ok=True)

    def names(self, kind: str) -> list[str]:
        """Return the names of the recorded attempts of a kind: `attempt` or `finished`."""
        return sorted(path.stem for path in self.folder.glob(f"*.{kind}"))

    def attempts_per_task(self) -> dict[str, set[str]]:
        """Return the attempt numbers of each Spark task."""
        attempts: dict[str, set[str]] = {}
        for name in self.names("attempt"):
            task, attempt, _ = name.rsplit("-", 2)
            attempts.setdefault(task, set()).add(attempt)
        return attempts
