"""The report of the demo on a terminal: tables, clustering and the timeline of runs and commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.facts import ClusteringFacts, DemoFacts, PartitionFacts
from demo.runs import DagRun
from demo.texts import clock_time, commit_text, recent, seconds_text, size_text

_BAR, _AXIS, _SHORT_AXIS = 24, 44, 16
#: The width of a terminal that shows the instants of commits beside the runs, and of one that shows the time axis.
_WITH_INSTANTS, _WITH_AXIS = 160, 120


def print_report(facts: DemoFacts, console: Console) -> None:
    """Print the report; without a terminal there are no colours."""
    console.print()
    if facts.chapters:
        console.print(_chapters(facts, console))
        console.print()
    console.print(_tables(facts, console))
    for table in facts.tables:
        if table.clustering is not None:
            console.print()
            console.print(_clustering(table.clustering, console))
    console.print()
    console.print(_timeline(facts, console))


def _grid(title: str, console: Console) -> Table:
    style = box.SIMPLE_HEAD if console.is_terminal else box.ASCII2
    return Table(title=title, title_justify="left", title_style="bold", box=style, pad_edge=False, expand=False)


def _chapters(facts: DemoFacts, console: Console) -> Table:
    grid = _grid("What changed", console)
    for name in ("chapter", "table", "measure"):
        grid.add_column(name)
    for name in ("before", "after"):
        grid.add_column(name, justify="right")
    for chapter in facts.chapters:
        grid.add_row(chapter.title, chapter.table, chapter.measure, chapter.before, Text(chapter.after, style="bold"))
    return grid


def _tables(facts: DemoFacts, console: Console) -> Table:
    grid = _grid("Tables", console)
    grid.add_column("table")
    grid.add_column("partition")
    for name in ("rows", "files", "size"):
        grid.add_column(name, justify="right")
    grid.add_column("share of rows", no_wrap=True)
    for table in facts.tables:
        most = max((partition.rows for partition in table.partitions), default=1)
        for position, partition in enumerate(table.partitions):
            grid.add_row(
                table.name if position == 0 else "",
                partition.name,
                f"{partition.rows:,}",
                str(partition.files),
                size_text(partition.size),
                _bar(partition, most, console),
            )
        grid.add_row("", "all", f"{table.rows:,}", str(table.files), size_text(table.size), "", style="bold")
        grid.add_section()
    return grid


def _bar(partition: PartitionFacts, most: int, console: Console) -> str:
    length = round(_BAR * partition.rows / max(most, 1))
    return f"[cyan]{'█' * length}[/]" if console.is_terminal else "#" * length


def _clustering(facts: ClusteringFacts, console: Console) -> Table:
    grid = _grid(f"Clustering of {facts.table}", console)
    grid.add_column("")
    for name in ("before", "after"):
        grid.add_column(name, justify="right")
    grid.add_row("files", *(str(count) for count in facts.files))
    grid.add_row("size", *(size_text(size) for size in facts.size))
    read = zip(facts.query_files, facts.files, facts.query_size, strict=True)
    grid.add_row(
        f"files to read where {facts.query}", *(f"{some} of {all_}, {size_text(size)}" for some, all_, size in read)
    )
    return grid


def _timeline(facts: DemoFacts, console: Console) -> Table:
    runs = recent(facts.runs)
    grid = _grid("Runs of Airflow's DAGs, and the commits that they made", console)
    has_instants, has_axis = console.width >= _WITH_INSTANTS, console.width >= _WITH_AXIS
    for name in ("start", "DAG", "run"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("duration", justify="right", no_wrap=True)
    if has_axis:
        grid.add_column("time", no_wrap=True)
    grid.add_column("commit")
    ends = [run.end for run in runs if run.end is not None]
    for run in runs:
        if run.start is None or run.end is None:
            continue
        commits = [
            f"{commit.instant}: {commit_text(commit)}" if has_instants else commit_text(commit)
            for table in facts.tables
            for commit in table.commits
            if run.made(commit.table, commit.operation, commit.at)
        ]
        axis = _AXIS if has_instants else _SHORT_AXIS
        span = [_span(run, runs, max(ends), axis, console)] if has_axis else []
        duration = seconds_text(run.seconds)
        grid.add_row(clock_time(run.start), run.dag_id, run.run_type, duration, *span, "\n".join(commits))
    return grid


def _span(run: DagRun, runs: Sequence[DagRun], last: datetime, axis: int, console: Console) -> str:
    first = min(other.start for other in runs if other.start is not None)
    whole = max((last - first).total_seconds(), 1.0)
    assert run.start is not None and run.end is not None
    begin = round(axis * (run.start - first).total_seconds() / whole)
    length = max(1, round(axis * (run.end - run.start).total_seconds() / whole))
    begin = min(begin, axis - length)
    if not console.is_terminal:
        return " " * begin + "=" * length
    return " " * begin + f"[{'green' if run.state == 'success' else 'red'}]{'━' * length}[/]"
