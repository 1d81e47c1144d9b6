"""Rows of a timeline: services, numbers, writers, filters, and few reads of metadata."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.operations.read.timeline_rows import TimelineFilter
from lakehouse.core.table.table import Table
from lakehouse.model.instant import State
from lakehouse.spec.contracts.catalog import TimelineInstant
from tests.support.tables import Shape, batch, make_table, row

TTL = {"lakehouse.ttl.max.partitions": "1"}
SORT = {"hoodie.clustering.plan.strategy.sort.columns": "id"}


def rows(*partitions: str, ts: int = 1) -> Any:
    return batch([row(f"k-{partition}-{number}", p=partition, ts=ts) for partition in partitions for number in (1, 2)])


def services(found: list[TimelineInstant] | tuple[TimelineInstant, ...]) -> list[str]:
    return [instant.service for instant in found]


@pytest.fixture
def serviced() -> Table:
    """A merge-on-read table on which every service of the timeline ran."""
    made = make_table(Shape(type="MERGE_ON_READ"))
    made.upsert(rows("a", "b"), commit_metadata={"lakehouse.ingest.run_id": "ingest.t/r1/ingest"})
    made.upsert(rows("a", ts=2))
    made.upsert(rows("a", ts=3))
    made.services.log_compaction.run(force=True)
    made.services.compaction.run(force=True)
    Table.open(made.location, env=made.refresh().env, options=SORT).services.clustering.run(force=True)
    made.insert_overwrite(rows("b", ts=4))
    made.savepoint(comment="before ttl", user="ada")
    Table.open(made.location, env=made.refresh().env, options=TTL).services.ttl.run()
    made.upsert(rows("c"))
    made.rollback(made.refresh().timeline.writes().instants[-1].requested)
    return made


def test_rows_name_the_service_behind_each_instant(serviced: Table) -> None:
    found = serviced.inspection.instants(TimelineFilter())
    expected = ["write", "write", "write", "logcompaction", "compaction", "clustering", "write", "savepoint"]
    assert services(found.instants) == [*expected, "ttl", "rollback"]
    assert found.total == 10
    assert serviced.inspection.bars().services == tuple(services(found.instants))
    # A savepoint has the requested time of its commit, and the detail shows the commit.
    others = [instant for instant in found.instants if instant.service != "savepoint"]
    assert [serviced.inspection.instant(instant.requested).service for instant in others] == services(others)


def test_rows_have_numbers_writers_and_notes(serviced: Table) -> None:
    found = serviced.inspection.instants(TimelineFilter()).instants
    first, compaction, ttl = found[0], found[4], found[8]
    assert (first.operation, first.rows, first.files, first.partitions) == ("UPSERT", 4, 2, 2)
    assert first.bytes and first.seconds is not None and first.seconds >= 0
    assert (first.run, first.engine) == ("ingest.t/r1/ingest", "lakehouse")
    assert (compaction.operation, compaction.rows) == ("COMPACT", 2)
    assert (found[7].author, found[7].note, found[7].seconds) == ("ada", "before ttl", None)
    assert (ttl.operation, ttl.partitions, ttl.rows) == ("DELETE_PARTITION", 1, 0)
    assert ttl.note == "replaces 1 partition (1 file group)"
    assert found[9].note.startswith("of deltacommit ")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (TimelineFilter(limit=2), ["ttl", "rollback"]),
        (TimelineFilter(services=("clustering", "ttl")), ["clustering", "ttl"]),
        (TimelineFilter(services=("replacecommit",)), ["clustering", "write", "ttl"]),
        (TimelineFilter(states=(State.REQUESTED,)), []),
        (TimelineFilter(partition="a", services=("write",)), ["write", "write", "write"]),
        (TimelineFilter(until_ms=0), []),
    ],
)
def test_filters_select_rows(serviced: Table, wanted: TimelineFilter, expected: list[str]) -> None:
    assert services(serviced.inspection.instants(wanted).instants) == expected


def test_total_is_unknown_if_the_search_of_a_partition_stopped_at_the_limit(serviced: Table) -> None:
    stopped = serviced.inspection.instants(TimelineFilter(partition="a", limit=1))
    assert (len(stopped.instants), stopped.total) == (1, None)
    whole = serviced.inspection.instants(TimelineFilter(partition="a"))
    assert whole.total == len(whole.instants) > 1


def test_bounds_of_time_are_inclusive(serviced: Table) -> None:
    found = serviced.inspection.instants(TimelineFilter()).instants
    between = TimelineFilter(since_ms=found[1].begin_ms, until_ms=found[3].begin_ms)
    assert serviced.inspection.instants(between).instants == found[1:4]


def test_pending_plan_of_a_replacecommit_gets_the_word_of_its_service() -> None:
    made = make_table(Shape(type="COPY_ON_WRITE", options=SORT))
    made.insert(rows("a"))
    made.insert(rows("a", ts=2))
    made.services.clustering.schedule(force=True)
    (pending,) = made.inspection.instants(TimelineFilter(states=(State.REQUESTED,))).instants
    assert (pending.service, pending.seconds, pending.rows) == ("clustering", None, None)


def test_archived_writes_keep_their_service() -> None:
    made = make_table(Shape(type="MERGE_ON_READ"))
    made.upsert(rows("a"))
    made.upsert(rows("a", ts=2))
    made.upsert(rows("a", ts=3))
    made.services.log_compaction.run(force=True)
    made.services.compaction.run(force=True)
    small = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
    for number in range(8):
        made.upsert(rows("a", ts=10 + number))
    keeper = Table.open(made.location, env=made.refresh().env, options=small)
    keeper.services.compaction.run(force=True)
    keeper.services.clean.run(force=True)
    keeper.services.archive.run(force=True)
    archived = keeper.inspection.instants(TimelineFilter(archived=True))
    assert services(archived.instants)[:5] == ["write", "write", "write", "logcompaction", "compaction"]
    assert archived.instants[0].rows == 2
    assert keeper.inspection.bars(archived=True).services == tuple(services(archived.instants))
