"""The story of the demo: its tables are in the state that each chapter names, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from demo import story as story_module
from demo.chapters import Chapter
from demo.facts import table_facts
from demo.order_chapters import (
    bad_record_chapter,
    clustering_chapters,
    land_bad_record,
    publish_day,
    published_chapters,
)
from demo.story import EVENTS, GPS, GPS_QUERY, POSITIONS, RATINGS, Story, open_story
from lakehouse import Table, load_catalog
from lakehouse.platform.ingest.commit_reports import BAD_RECORDS

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story_module, "_GPS_COMMITS", 5)
        patch.setattr(story_module, "_EVENTS_COMMITS", 2)
        patch.setattr(story_module, "_POSITION_COMMITS", 6)
        patch.setenv("LAKEHOUSE_HOME", str(home))
        with load_catalog() as catalog:
            made = open_story(home, catalog)
            made.write()
            yield made


def chapter(story: Story, title: str) -> Chapter:
    return next(one for one in story.chapters if one.title == title)


def test_tables_are_registered_with_one_small_file_per_district_and_commit(story: Story) -> None:
    assert {entry.identifier for entry in story.catalog.list_tables()} == {GPS, POSITIONS, RATINGS, EVENTS}
    assert story.files(GPS) == 5 * 10
    assert story.table(EVENTS).health().small_files == 2 * 10


def test_only_the_points_are_due_for_clustering(story: Story) -> None:
    assert story.table(GPS).services.clustering.due().due
    assert not story.table(EVENTS).services.clustering.due().due


def test_compaction_merges_the_logs_while_a_writer_commits(story: Story) -> None:
    backlog = chapter(story, "Log backlog")
    before, after = (int(text.split()[0]) for text in (backlog.before, backlog.after))
    assert after < before
    actions = [instant.action.value for instant, _ in story.table(POSITIONS).commits()]
    assert actions.count("commit") == 1
    assert "0 commits of a writer" not in backlog.text and "none waited" in backlog.text
    assert story.table(POSITIONS).health().pending_plans == 0


def test_late_records_replace_no_newer_row(story: Story) -> None:
    late = chapter(story, "Late data")
    assert (late.before, late.after) == ("2,000", "2,050")
    assert "0 of them replaced a newer row" in late.text


def test_new_column_and_rolled_back_write(story: Story) -> None:
    assert (chapter(story, "Schema change").before, chapter(story, "Schema change").after) == ("3", "4")
    bad = chapter(story, "Bad write")
    assert (bad.before, bad.after) == ("500.00", "3.00")
    assert len(story.table(RATINGS).commits()) == 2


def test_clustering_chapters_compare_files_of_table_and_query(story: Story) -> None:
    table = story.table(GPS)
    table.services.clustering.run()
    facts = table_facts(story.table(GPS), GPS_QUERY).clustering
    assert facts is not None
    small, query = clustering_chapters(facts)
    assert (small.before.split()[0], small.after.split()[0]) == ("50", "10")
    assert int(query.after) < int(query.before)


def test_second_run_keeps_the_chapters_and_an_interrupted_one_starts_again(story: Story, tmp_path: Path) -> None:
    again = open_story(tmp_path, story.catalog)
    assert not again.is_written
    again.keep(story.chapters)
    kept = open_story(tmp_path, story.catalog)
    assert kept.is_written and kept.chapters == story.chapters
    story._clear()
    assert story.catalog.list_tables() == () and not (story.lake / "gps_points").exists()


def orders(status: str, at: int, *keys: str) -> pa.Table:
    size = len(keys)
    return pa.table(
        {
            "order_id": list(keys),
            "order_date": ["2026-01-01"] * size,
            "updated_at": [at] * size,
            "status": [status] * size,
        }
    )


def test_published_day_shows_no_later_change(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "orders"),
        name="ride_orders",
        record_key="order_id",
        partition_by="order_date",
        ordering="updated_at",
    )
    table.upsert(orders("requested", 5, "a", "b"))
    published = publish_day(table, DAY)
    assert published.rows == 2
    table.upsert(orders("completed", 9, "b", "c"))
    table.upsert(orders("requested", 1, "a"))
    publication, late = published_chapters(table, published, DAY)
    assert publication.after == "2" and "has 3 rows" in publication.text
    assert late.after == "2" and "0 rows were replaced by an older event" in late.text


def test_bad_record_is_landed_once_and_counted_from_its_commit(tmp_path: Path) -> None:
    land_bad_record(tmp_path, DAY)
    (file,) = (tmp_path / "2026-01-01").iterdir()
    first = file.stat().st_mtime_ns
    land_bad_record(tmp_path, DAY)
    assert file.stat().st_mtime_ns == first
    table = Table.create(str(tmp_path / "orders"), name="ride_orders", record_key="order_id")
    table.upsert(orders("requested", 1, "o-by-hand"))
    assert bad_record_chapter(table) is None
    table.upsert(orders("requested", 2, "b"), commit_metadata={BAD_RECORDS: "1"})
    found = bad_record_chapter(table)
    assert found is not None and found.after == "1 dead letter" and "1 of them from the same file" in found.text
