"""The report of the demo: values read from tables, the text chart and the page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from demo.chapters import Chapter
from demo.chart import print_report
from demo.facts import DemoFacts, table_facts
from demo.page import page, write_page
from demo.runs import DagRun
from demo.texts import recent, seconds_text, size_text
from lakehouse import Table

LAYOUT = {"hoodie.clustering.plan.strategy.sort.columns": "zone"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two days of rides, of which one is changed, and a clustering."""
    created = Table.create(
        str(tmp_path_factory.mktemp("lake") / "rides"),
        name="ride_orders",
        record_key=["id"],
        partition_by=["day"],
        ordering="at",
    )
    created.upsert(rides({"a": "2026-01-01", "b": "2026-01-01", "c": "2026-01-02"}, at=1))
    created.upsert(rides({"a": "2026-01-01", "d": "2026-01-02"}, at=2))
    created.with_options(LAYOUT).services.clustering.run(force=True)
    return created


def rides(days: Mapping[str, str], *, at: int) -> pa.Table:
    zones = [f"zone-{key}" for key in days]
    return pa.table({"id": list(days), "day": list(days.values()), "at": [at] * len(days), "zone": zones})


@pytest.fixture(scope="module")
def facts(table: Table) -> DemoFacts:
    found = table_facts(table, "zone = 'zone-a'")
    first, last = found.commits[0].at, found.commits[-1].at
    runs = (
        run_of("ingest.ride_orders", first - timedelta(seconds=5), first + timedelta(milliseconds=1)),
        run_of("services.clustering", last - timedelta(milliseconds=1), last + timedelta(seconds=2)),
    )
    return DemoFacts(tables=(found,), runs=runs, database="PostgreSQL", made_at=last)


def run_of(dag_id: str, start: datetime, end: datetime, state: str = "success") -> DagRun:
    return DagRun(dag_id=dag_id, run_id=f"{dag_id}-1", run_type="scheduled", state=state, start=start, end=end)


def test_table_facts_count_rows_commits_and_files(facts: DemoFacts, table: Table) -> None:
    (found,) = facts.tables
    assert {partition.name: partition.rows for partition in found.partitions} == {
        "day=2026-01-01" if table.config.keys.hive_style else "2026-01-01": 2,
        "day=2026-01-02" if table.config.keys.hive_style else "2026-01-02": 2,
    }
    assert found.rows == 4
    assert [(commit.inserted, commit.updated) for commit in found.commits[:2]] == [(3, 0), (1, 1)]
    assert (found.commits[2].inserted, found.commits[2].rewritten) == (0, 4)
    assert all(commit.size > 0 and commit.files > 0 for commit in found.commits)
    assert abs(found.commits[-1].at - datetime.now(UTC)) < timedelta(minutes=30)


def test_table_facts_compare_files_before_and_after_clustering(facts: DemoFacts) -> None:
    clustering = facts.tables[0].clustering
    assert clustering is not None
    assert clustering.instant == facts.tables[0].commits[-1].instant
    assert clustering.files == (2, 2)
    assert clustering.query_files == (1, 1)
    assert all(0 < some < whole for some, whole in zip(clustering.query_size, clustering.size, strict=True))


def test_run_made_the_commits_of_its_own_table_within_its_time(facts: DemoFacts) -> None:
    ingestion, clustering = facts.runs
    first, _, last = facts.tables[0].commits
    assert ingestion.made(first.table, first.operation, first.at)
    assert not ingestion.made("ride_trips", first.operation, first.at)
    assert not ingestion.made(last.table, last.operation, last.at)
    assert clustering.made(last.table, last.operation, last.at)


@pytest.mark.parametrize("terminal", [True, False])
def test_print_report_shows_tables_clustering_and_runs(facts: DemoFacts, terminal: bool) -> None:
    output = io.StringIO()
    print_report(facts, Console(file=output, force_terminal=terminal, width=200, color_system=None))
    text = output.getvalue()
    for part in ("ride_orders", "2026-01-02", "Clustering of ride_orders", "files to read where zone = 'zone-a'"):
        assert part in text
    assert f"{facts.tables[0].commits[0].instant}: 3 inserted, 0 updated" in text
    if not terminal:
        assert text.isascii()


@pytest.mark.parametrize("width", [100, 120, 159, 160])
def test_print_report_shows_each_run_and_its_commit_on_one_line(facts: DemoFacts, width: int) -> None:
    output = io.StringIO()
    print_report(facts, Console(file=output, force_terminal=True, width=width, color_system=None))
    (line,) = [line for line in output.getvalue().splitlines() if "ingest.ride_orders" in line]
    assert "3 inserted, 0 updated, 2 files" in line
    assert len(line) <= width
    assert (facts.tables[0].commits[0].instant in line) == (width >= 160)
    assert ("━" in line) == (width >= 120)


def test_page_lists_runs_by_their_start(facts: DemoFacts) -> None:
    text = page(replace(facts, runs=tuple(reversed(facts.runs)))).partition("<h2>Runs</h2>")[2]
    assert text.index("ingest.ride_orders") < text.index("services.clustering")


class Page(HTMLParser):
    """Collects the elements and the addresses of a page, and checks that elements are closed in their order."""

    VOID = ("meta", "br", "line", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.opened.pop() == tag


def parsed(text: str) -> Page:
    result = Page()
    result.feed(text)
    assert result.opened == []
    return result


def test_page_is_well_formed_and_needs_no_other_resource(facts: DemoFacts, tmp_path: Path) -> None:
    text = write_page(facts, tmp_path / "report.html").read_text(encoding="utf-8")
    found = parsed(text)
    assert found.addresses == []
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert found.tags.count("circle") == 2
    assert found.tags.count("rect") == 2
    assert "prefers-color-scheme: dark" in text
    for part in ("ride_orders", facts.tables[0].commits[0].instant, "after", "services.clustering"):
        assert part in text


def test_page_escapes_names(facts: DemoFacts) -> None:
    name = "<img src=x onerror=alert(1)>"
    (found,) = facts.tables
    partitions = tuple(replace(partition, name=name) for partition in found.partitions)
    hostile = replace(
        facts,
        tables=(replace(found, name=name, location=name, partitions=partitions),),
        runs=tuple(replace(run, dag_id=name, run_type=name) for run in facts.runs),
        database=name,
    )
    text = page(hostile)
    assert "img" not in parsed(text).tags
    assert "&lt;img" in text


def test_page_without_runs_or_tables_is_well_formed(facts: DemoFacts) -> None:
    assert "svg" not in parsed(page(replace(facts, tables=(), runs=()))).tags


def test_recent_returns_finished_runs_of_the_last_sitting(facts: DemoFacts) -> None:
    ingestion, clustering = facts.runs
    assert ingestion.start is not None and ingestion.end is not None
    old = replace(ingestion, run_id="old", start=ingestion.start - timedelta(hours=5))
    unfinished = replace(clustering, run_id="unfinished", end=None)
    assert recent([unfinished, clustering, old, ingestion]) == [ingestion, clustering]
    assert recent([]) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_250, "1.25 KB"), (1_700_000, "1.70 MB"), (12_000, "12.0 KB"), (999_700, "1.00 MB")],
)
def test_size_text_has_three_digits_and_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (3.25, "3.2 s"), (125.0, "2 min 05 s")])
def test_seconds_text_has_minutes_from_one_minute_on(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_report_and_page_show_each_chapter_before_and_after(facts: DemoFacts) -> None:
    chapter = Chapter(
        title="Small files", table="rides.gps_points", measure="files", before="240", after="10", text="a < b"
    )
    changed = replace(facts, chapters=(chapter,))
    output = io.StringIO()
    print_report(changed, Console(file=output, width=200))
    (line,) = [line for line in output.getvalue().splitlines() if "Small files" in line]
    assert line.replace("|", " ").split() == ["Small", "files", "rides.gps_points", "files", "240", "10"]
    assert "What changed" not in page(facts)
    shown = page(changed)
    assert "What changed" in shown and "<b>Small files</b>: a &lt; b" in shown
