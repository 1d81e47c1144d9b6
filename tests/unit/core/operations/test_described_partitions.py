"""What `describe` says of partitions: small files, and the time of the newest write."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, batch, make_table, row


def rows(*partitions: str, ts: int = 1) -> Any:
    return batch([row(f"k-{partition}", p=partition, ts=ts) for partition in partitions])


def written(table: Table) -> dict[str, int | None]:
    return {part.partition: part.written_ms for part in table.describe().partitions}


def times(table: Table) -> list[int]:
    return [instant_ms(write.requested, "UTC") for write in table.refresh().timeline.writes()]


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_partition_has_the_time_of_its_newest_write_and_rewrites_do_not_count(type: str) -> None:
    made = make_table(Shape(type=type))
    made.upsert(rows("a", "b"))
    made.upsert(rows("a", ts=2))
    first, second = times(made)
    assert written(made) == {"a": second, "b": first}
    sort = {"hoodie.clustering.plan.strategy.sort.columns": "id"}
    Table.open(made.location, env=made.refresh().env, options=sort).services.clustering.run(force=True)
    assert len(times(made)) == 3 and written(made) == {"a": second, "b": first}


def test_partition_whose_write_left_the_timeline_has_the_time_of_its_base_file() -> None:
    made = make_table(Shape(type="COPY_ON_WRITE"))
    made.upsert(rows("old"))
    (first,) = times(made)
    for number in range(8):
        made.upsert(rows("new", ts=number))
    small = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
    keeper = Table.open(made.location, env=made.refresh().env, options=small)
    keeper.services.clean.run(force=True)
    keeper.services.archive.run(force=True)
    assert first not in times(keeper)
    assert written(keeper) == {"old": first, "new": times(keeper)[-1]}


def test_small_files_are_counted_by_the_limit_of_writers() -> None:
    made = make_table(Shape(type="COPY_ON_WRITE"))
    made.insert(rows("a", "b"))
    assert [(part.base_files, part.small_files) for part in made.describe().partitions] == [(1, 1), (1, 1)]
    large = Table.open(made.location, env=made.refresh().env, options={"hoodie.parquet.small.file.limit": "1"})
    assert [(part.base_files, part.small_files) for part in large.describe().partitions] == [(1, 0), (1, 0)]
