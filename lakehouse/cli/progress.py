"""Shows the progress of long operations: progress bars on a terminal, otherwise one line at the end of each stage.

    with lakehouse.progress():
        table.services.compaction.run(spark=spark)

On Spark, a bar moves when the driver is notified that a task has ended. rich is imported when the first bar is drawn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO

from lakehouse.core.engine.progress import Stage, observing
from lakehouse.model.display import count_text, size_text
from lakehouse.model.texts import printable


@contextmanager
def progress(file: TextIO | None = None) -> Iterator[None]:
    """Show the progress of the operations in a `with` block on `file`, by default the standard error stream.

    A terminal shows progress bars. Other streams, such as the output of a notebook, get one line at the end of each
    stage.
    """
    stream = sys.stderr if file is None else file
    shown: TerminalProgress | LineProgress = TerminalProgress(stream) if stream.isatty() else LineProgress(stream)
    with _shown(shown):
        yield


@contextmanager
def terminal_progress() -> Iterator[None]:
    """Show progress bars for the operations in a `with` block, but only if standard error is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    with _shown(TerminalProgress(sys.stderr)):
        yield


@contextmanager
def _shown(shown: TerminalProgress | LineProgress) -> Iterator[None]:
    try:
        with observing(shown):
            yield
    finally:
        shown.close()


class LineProgress:
    """Writes one line at the end of each stage, such as `compaction of orders: 12 of 12 file groups, 1.2 GB`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._done: dict[Stage, tuple[int, int]] = {}

    def started(self, stage: Stage) -> None:
        """Start the counts of a stage."""
        with self._lock:
            self._done[stage] = (0, 0)

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        """Count finished units."""
        with self._lock:
            done, size_done = self._done[stage]
            self._done[stage] = (done + units, size_done + size)

    def ended(self, stage: Stage, *, failed: bool) -> None:
        """Write the line of the stage."""
        with self._lock:
            done, size = self._done.pop(stage)
            line = f"{_title(stage)}{' failed' if failed else ''}: {_counts(stage, done, size)}"
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def close(self) -> None:
        """Do nothing, because each line is flushed when it is written."""


class TerminalProgress:
    """Draws a progress bar for each stage on a terminal. The bars of ended stages stay on the screen."""

    def __init__(self, stream: TextIO, console: Any = None) -> None:
        self._stream, self._console = stream, console
        self._lock = threading.Lock()
        self._bars: Any = None
        self._tasks: dict[Stage, Any] = {}
        self._done: dict[Stage, tuple[int, int]] = {}

    def started(self, stage: Stage) -> None:
        """Draw an empty bar."""
        with self._lock:
            if self._bars is None:
                self._bars = _bars(self._console, self._stream)
                self._bars.start()
            self._done[stage] = (0, 0)
            self._tasks[stage] = self._bars.add_task(_title(stage), total=stage.total, counts=_counts(stage, 0, 0))

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        """Advance the bar; a thread of the library rich draws it."""
        with self._lock:
            done, size_done = self._done[stage]
            self._done[stage] = done, size_done = done + units, size_done + size
            self._bars.update(self._tasks[stage], advance=units, counts=_counts(stage, done, size_done))

    def ended(self, stage: Stage, *, failed: bool) -> None:
        """Draw the bar for the last time. The screen is released when no stage runs."""
        with self._lock:
            task = self._tasks.pop(stage)
            if failed:
                self._bars.update(task, description=f"{_title(stage)} failed")
            self._bars.stop_task(task)
            del self._done[stage]
            if not self._tasks:
                self._release()

    def close(self) -> None:
        """Release the screen. This also works after an error between two calls."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _title(stage: Stage) -> str:
    return printable(f"{stage.name} of {stage.table}")


def _counts(stage: Stage, done: int, size: int) -> str:
    """Return `12 of 40 file groups, 1.2 MB of 3.4 MB`."""
    counts = f"{done:,} of {count_text(stage.total, stage.unit)}"
    if not stage.total_bytes:
        return counts
    total = "" if size == stage.total_bytes else f" of {size_text(stage.total_bytes)}"
    return f"{counts}, {size_text(size)}{total}"


def _bars(console: Any, stream: TextIO) -> Any:
    """Create the progress bars of rich. Markup is disabled, because table names may contain brackets."""
    rich: Any = import_module("rich.progress")
    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[counts]}", markup=False),
        rich.TimeElapsedColumn(),
    )
    return rich.Progress(*columns, console=console or import_module("rich.console").Console(file=stream))
