"""Text output of commands: rounded sizes, local times, shared reasons, and tables that fit the terminal."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.cli.layout import lay_out
from lakehouse.cli.output import grid, show, show_document, show_rows
from lakehouse.spec.contracts.services import OrphanFile, OrphanFiles, ServiceCondition
from lakehouse.spec.contracts.tables import CommitInfo, PartitionInfo, TableSummary

LONG = "s3://lake/" + "/".join(["sales"] * 30)
CELLS = st.text(st.characters(exclude_categories=["C", "M", "Z"]), min_size=1, max_size=80)
ORPHAN = OrphanFile(file="a.parquet", bytes=1_234_567, modified="2026-11-22 20:46:06", reason="no write names it")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local zone of the process, and set it back."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1")
        time.tzset()
        yield
    time.tzset()


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, value: Any, **environment: str) -> str:
    """Return what `show` or `show_document` prints on a terminal of this width."""
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", environment.get("TERM", "xterm-256color"))
    monkeypatch.setenv("NO_COLOR", environment.get("NO_COLOR", ""))
    monkeypatch.setattr(sys, "stdout", stream)
    show(value, "text") if isinstance(value, list) else show_document(value, "text")
    return stream.getvalue()


def test_sizes_counts_and_truth_values_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    document = OrphanFiles(deleted=True, files=12345, bytes=1_234_567, orphans=(ORPHAN,))
    show_document(document, "text")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["deleted  yes", "files    12,345", "bytes    1.2 MB"]
    assert "1.2 MB" in lines[-2]


@pytest.mark.usefixtures("berlin")
def test_times_are_local_and_the_zone_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_document(OrphanFiles(deleted=False, orphans=(ORPHAN, ORPHAN)), "text")
    text = capsys.readouterr().out
    assert text.count("2026-11-22 21:46:06") == 2 and "20:46:06" not in text
    assert text.splitlines()[-1] == "(times are in CET (UTC+01:00))"
    assert text.count("CET") == 1


@pytest.mark.usefixtures("berlin")
def test_json_has_raw_numbers_and_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    show_document(OrphanFiles(deleted=False, bytes=1_234_567, orphans=(ORPHAN,)), "json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["bytes"] == 1_234_567
    assert answer["orphans"][0]["modified"] == "2026-11-22 20:46:06"


def test_times_with_a_zone_are_converted_in_any_field(capsys: pytest.CaptureFixture[str]) -> None:
    show({"watermark": "2026-01-31T10:00:00Z", "instant": "20260131100000000", "note": "2026-01-31 10:00:00"}, "text")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "instant    20260131100000000"
    assert lines[2] == "note       2026-01-31 10:00:00"
    assert len(lines) == 4 and lines[3].startswith("(times are in ")


def test_durations_are_text_and_identifiers_have_no_separators(capsys: pytest.CaptureFixture[str]) -> None:
    document = ServiceCondition(
        service="compaction",
        due=True,
        reason="3 commits",
        inputs={"seconds": 7200.0, "log_bytes": 5_000, "commits": 4321},
    )
    show_document(document, "text")
    show({"freshness lag s": 90, "table version": 1009, "ratio": 0.12345}, "text")
    text = capsys.readouterr().out
    assert "inputs   seconds=2h, log_bytes=5.0 kB, commits=4,321" in text
    assert "freshness lag  90s" in text and "table version  1009" in text and "ratio          0.123" in text


def test_reason_of_several_rows_is_printed_once_with_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    waits = "the budget of the service is used up"
    rows = [{"table": f"sales.t{n}", "service": "clean", "due": True, "why": waits} for n in range(3)]
    show_rows([*rows, {"table": "sales.other", "service": "clean", "due": False, "why": "2 commits"}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["table", "service", "due"]
    assert lines[-4:] == [waits, "  sales.t0 clean, sales.t1 clean, sales.t2 clean", "2 commits", "  sales.other clean"]


def test_reasons_that_differ_stay_in_their_rows() -> None:
    lines = grid([{"table": "a", "reason": "x"}, {"table": "b", "reason": "y"}]).splitlines()
    assert lines[2:] == ["a      x", "b      y"]


def test_long_lists_name_the_number_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    partitions = tuple(PartitionInfo(partition=f"day={n:03d}", base_bytes=n) for n in range(32))
    show_document(TableSummary(table="t", location="x", type="cow", partitions=partitions), "text")
    text = capsys.readouterr().out
    assert "day=019" in text and "day=020" not in text
    assert "  ... and 12 more (--output json prints all)" in text.splitlines()
    show({"changes": [f"c{n}" for n in range(22)]}, "text")
    assert capsys.readouterr().out == "changes  c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 ... and 12 more\n"


def test_table_is_shortened_to_the_terminal_and_names_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    orphans = OrphanFiles(deleted=False, orphans=(OrphanFile(file=LONG, bytes=1, modified="", reason="short"),))
    text = on_terminal(monkeypatch, 80, orphans, NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= 80
    assert LONG[:20] in text and LONG not in text
    assert "(shortened to the terminal: file (--output json prints all))" in text.splitlines()


def test_output_that_is_no_terminal_is_complete_and_without_styles(capsys: pytest.CaptureFixture[str]) -> None:
    show_document(
        OrphanFiles(deleted=False, orphans=(OrphanFile(file=LONG, bytes=1, modified="", reason="r"),)), "text"
    )
    text = capsys.readouterr().out
    assert LONG in text and "shortened" not in text and "\x1b" not in text


def test_names_of_columns_are_bold_on_a_terminal_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": 1, "v": "[bold]x[/bold]"}]
    assert "\x1b[1mid  v" in on_terminal(monkeypatch, 80, rows)
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = on_terminal(monkeypatch, 80, rows, **environment)
        assert text == "id  v\n--  --------------\n1   [bold]x[/bold]\n"


@pytest.mark.parametrize("columns", [20, 60, 1000])
def test_values_of_rows_are_never_shortened_or_rounded(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    rows = [{"bytes": 1234567, "location": LONG, "at": "2026-11-22 20:46:06", "tags": list(range(40)), "v": None}]
    text = on_terminal(monkeypatch, columns, rows, NO_COLOR="1")
    assert (
        LONG in text and "1234567" in text and "2026-11-22 20:46:06" in text and ", ".join(map(str, range(40))) in text
    )
    assert "..." not in text and "times are in" not in text


def test_control_characters_of_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"v": "\x1b[31mred"}], "text")
    show({"name": "a\nb"}, "text")
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\\x1b[31mred" in text and "a\\nb" in text


def test_commits_of_a_summary_have_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    commit = CommitInfo(
        instant="20260131100000000",
        completed=None,
        operation="UPSERT",
        files=2,
        inserts=1_500_000,
        updates=0,
        deletes=0,
        bytes=2_500_000_000,
    )
    show_document(TableSummary(table="t", location="x", type="cow", commits=(commit,)), "text")
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split() == ["20260131100000000", "-", "UPSERT", "2", "1,500,000", "0", "0", "2.5", "GB"]


@given(st.lists(CELLS, min_size=1, max_size=6), st.integers(10, 200))
def test_layout_fits_the_width_or_prints_every_value(cells: list[str], width: int) -> None:
    names = [f"c{number}" for number in range(len(cells))]
    layout = lay_out(names, [cells], width, may_cut=True)
    if layout.heads:
        assert all(len(line) <= width for line in layout.lines)
        assert layout.shortened or all(cell in layout.lines[-1] for cell in cells)
    else:
        assert [line.split("  ")[-1] for line in layout.lines] == cells
    whole = lay_out(names, [cells], width, may_cut=False)
    assert not whole.shortened and all(any(cell in line for line in whole.lines) for cell in cells)
