"""A resize of buckets is dropped: its logs with copied rows are deleted, although commits on the timeline list them."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Instant
from lakehouse.spec.options.index import MERGE_THRESHOLD, SPLIT_THRESHOLD
from tests.support.archived import eager
from tests.support.tables import Shape, batch, log_files, make_table, row

SPLIT = {SPLIT_THRESHOLD: "0.2", MERGE_THRESHOLD: "0", "hoodie.parquet.max.file.size": "1000"}
LISTING = {"hoodie.metadata.enable": "false"}
LARGE = {"hoodie.parquet.max.file.size": "100000000"}


def storage_of(table: Table) -> Storage:
    return table.refresh().env.storage


def rows(value: str, *partitions: str) -> Any:
    places = [(place, number) for place in partitions for number in range(6)]
    return batch(row(f"{place}{number}", p=place, v=value, ts=int(value)) for place, number in places)


def upsert(table: Table, value: str) -> str:
    outcome = table.upsert(rows(value, "a", "b"))
    assert isinstance(outcome, Committed)
    return outcome.instant.requested


def values(table: Table) -> list[tuple[str, str]]:
    found = table.scan(["id", "v"]).to_arrow().to_pylist()
    return sorted((record["id"], record["v"]) for record in found)


def copies(table: Table, plan: Instant) -> list[str]:
    return [log.path for log in log_files(storage_of(table)) if log.instant == plan.requested]


def copied(options: dict[str, str], *, overwrites: bool = True) -> tuple[Table, Instant, str]:
    """Return a table with a pending split, and the requested time of a write that copied its rows for it."""
    shape = Shape(
        type="MERGE_ON_READ", index="BUCKET", buckets=2, options={BUCKET_ENGINE: CONSISTENT_HASHING, **options}
    )
    table = eager(make_table(shape), **options | LARGE)
    upsert(table, "1")
    plan = table.with_options(SPLIT).services.clustering.schedule(force=True)
    assert isinstance(plan, Instant)
    if overwrites:
        # The split cannot be executed any more: some of its buckets are replaced.
        assert isinstance(table.insert_overwrite(rows("2", "a")), Committed)
    writer = upsert(table, "3")
    assert copies(table, plan)
    return table, plan, writer


@pytest.mark.parametrize("options", [{}, LISTING], ids=["metadata", "listing"])
def test_copies_for_a_dropped_resize_are_not_missing_after_the_archive_passed_its_time(options: dict[str, str]) -> None:
    """apache/hudi#8479, apache/hudi#4958: a resize whose instant has left the timeline, and writes concurrent to it."""
    table, plan, writer = copied(options)
    table.services.clustering.run(force=True)
    assert table.timeline.find(plan.requested) is None, "the split was dropped"
    assert not copies(table, plan)
    if not options:
        assert table.metadata.validate().ok, "the metadata table lists no deleted copy"
    upsert(table, "4")
    table.services.compaction.run(force=True)
    expected = upsert(table, "5") and values(table)
    assert {value for _, value in expected} == {"5"} and len(expected) == 12
    assert isinstance(table.services.archive.run(force=True), Archived)
    assert table.timeline.find(writer) is not None
    assert next(iter(table.timeline.writes())).requested > plan.requested
    assert values(table) == expected
    assert table.incremental("earliest").to_arrow().num_rows == 12
    assert not table.validate(deep=True).corrupt
    table.savepoint(writer)
    table.restore(writer)
    assert values(table) == [(key, "3") for key, _ in expected]


@pytest.mark.parametrize("options", [{}, LISTING], ids=["metadata", "listing"])
def test_lost_copies_of_a_completed_resize_are_missing(options: dict[str, str]) -> None:
    """apache/hudi#8479: the copies of a completed resize are needed, so that a read without them fails."""
    table, plan, _ = copied(options, overwrites=False)
    assert isinstance(table.services.clustering.run(instant=plan.requested), Committed)
    storage_of(table).delete(copies(table, plan)[0])
    with pytest.raises(CorruptTableError):
        values(table)
