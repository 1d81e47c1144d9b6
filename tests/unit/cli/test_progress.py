"""Bars on a terminal and lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

import lakehouse
from lakehouse.cli.progress import LineProgress, TerminalProgress, terminal_progress
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import Stage, finished_task, observed_stage, observing

WORK = Stage(name="compaction", table="sales[bold].orders", unit="file group", total=4, total_bytes=4_000_000)
SIZES = [1_000_000] * 4


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def work(failing: int = -1) -> None:
    """Run four tasks, of which one may fail."""

    def task(_: object, number: int) -> int:
        if number == failing:
            raise OSError("disk is full")
        return number

    with observed_stage(WORK) as running, running.tasks(SIZES):
        LocalEngine(1).run(task, list(range(4)))


def bars(failing: int = -1) -> str:
    """Return the text that a terminal of 160 columns gets."""
    stream = io.StringIO()
    shown = TerminalProgress(stream, Console(force_terminal=True, file=stream, width=160, color_system=None))
    try:
        with observing(shown):
            work(failing)
    finally:
        shown.close()
    return stream.getvalue()


def test_bar_reaches_the_total_and_stays() -> None:
    last = [line for line in bars().splitlines() if "compaction" in line][-1]
    assert "compaction of sales[bold].orders" in last
    assert "4 of 4 file groups, 4.0 MB" in last and "failed" not in last


def test_bar_of_a_failed_stage_says_so_with_the_last_count() -> None:
    stream = io.StringIO()
    shown = TerminalProgress(stream, Console(force_terminal=True, file=stream, width=160, color_system=None))
    with pytest.raises(OSError, match="disk is full"), observing(shown):
        work(failing=2)
    shown.close()
    last = [line for line in stream.getvalue().splitlines() if "compaction" in line][-1]
    assert "compaction of sales[bold].orders failed" in last
    assert "2 of 4 file groups, 2.0 MB of 4.0 MB" in last
    assert "\x1b[?25h" in stream.getvalue(), "the cursor is visible again"


def test_stream_that_is_no_terminal_gets_one_line_per_stage() -> None:
    stream = io.StringIO()
    with lakehouse.progress(stream):
        work()
        with pytest.raises(OSError, match="disk is full"):
            work(failing=1)
    assert stream.getvalue().splitlines() == [
        "compaction of sales[bold].orders: 4 of 4 file groups, 4.0 MB",
        "compaction of sales[bold].orders failed: 1 of 4 file groups, 1.0 MB of 4.0 MB",
    ]


def test_progress_draws_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    with lakehouse.progress(stream):
        work()
    assert "4 of 4 file groups" in stream.getvalue()


def test_commands_show_progress_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal_progress():
            work()
        assert ("4 of 4 file groups" in stream.getvalue()) == shown


def test_two_stages_at_a_time_have_two_bars() -> None:
    stream = io.StringIO()
    shown = TerminalProgress(stream, Console(force_terminal=True, file=stream, width=160, color_system=None))
    other = Stage(name="clean", table="lines", unit="file", total=2)
    with observing(shown), observed_stage(WORK) as first, observed_stage(other) as second:
        with first.tasks(SIZES), second.tasks([0, 0]):
            finished = finished_task()
            assert finished is not None
            finished(0)
        with first.tasks(SIZES):
            work()
    shown.close()
    assert "1 of 2 files" in stream.getvalue() and "4 of 4 file groups" in stream.getvalue()


def test_lines_count_stages_with_the_same_name_apart() -> None:
    stream = io.StringIO()
    lines = LineProgress(stream)
    first, second = (Stage(name="clean", table="t", unit="file", total=n) for n in (1, 2))
    lines.started(first)
    lines.started(second)
    lines.advanced(second, 2, 0)
    lines.ended(second, failed=False)
    lines.ended(first, failed=True)
    assert stream.getvalue().splitlines() == ["clean of t: 2 of 2 files", "clean of t failed: 0 of 1 file"]
