"""Writes by key to tables in which several base rows have one key: all of them are changed, or the write is refused.

Apache Hudi 0.15 (copy-on-write) and Hudi 1.2 (merge-on-read, by positions in log blocks) change all rows, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import UserError

NUMBERS = itertools.count()
INDEXES = ("SIMPLE", "BLOOM", "GLOBAL_SIMPLE", "RECORD_INDEX")
#: Without small files, a merge-on-read table gets logs unless a key is repeated.
NO_SMALL_FILES = {"hoodie.parquet.small.file.limit": "0"}


def batch(ids: list[str], *values: int) -> pa.Table:
    """Return rows with an id and a value."""
    return pa.table({"id": ids, "v": pa.array(values, pa.int64())})


def rows(table: Table) -> list[tuple[str, int]]:
    """Return all rows in order."""
    read = table.scan().to_arrow()
    return sorted(zip(read.column("id").to_pylist(), read.column("v").to_pylist(), strict=True))


def created(kind: str, index: str = "SIMPLE", **options: str) -> Table:
    """Return a table with two rows of the key `a`."""
    settings = {**NO_SMALL_FILES, "hoodie.index.type": index, **options}
    location = f"memory://repeated/{next(NUMBERS)}"
    table = Table.create(location, name="t", record_key="id", table_type=kind, options=settings)
    table.insert(batch(["a", "a", "b"], 1, 2, 3))
    return table


def upserted(table: Table) -> Any:
    return table.upsert(batch(["a"], 9))


def deleted(table: Table) -> Any:
    return table.delete(["a"])


def merged(table: Table) -> Any:
    return table.merge(batch(["a"], 9), ["id"]).when_matched_update_all().when_not_matched_insert_all().execute()


BOTH = [("a", 9), ("a", 9), ("b", 3)]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("kind", ["COW", "MOR"])
@pytest.mark.parametrize(("change", "expected"), [(upserted, BOTH), (merged, BOTH), (deleted, [("b", 3)])])
def test_write_by_key_changes_all_rows_of_the_key(
    change: Callable[[Table], Any], expected: list[tuple[str, int]], kind: str, index: str
) -> None:
    table = created(kind, index)
    assert change(table).rows == 2
    assert rows(table) == expected
    assert not table.validate().findings


def test_only_the_file_group_with_a_repeated_key_is_rewritten() -> None:
    table = created("MOR")
    table.insert(batch(["c"], 4))
    outcome = table.delete(["a", "c"])
    paths = sorted(stat.path.rpartition(".")[2] for stat in outcome.metadata.stats)  # type: ignore[union-attr]
    assert len(paths) == 2
    assert sum(".log." in stat.path for stat in outcome.metadata.stats) == 1  # type: ignore[union-attr]
    assert rows(table) == [("b", 3)]


@pytest.mark.parametrize("change", [upserted, deleted])
def test_repeated_key_below_a_log_is_refused_until_the_compaction(change: Callable[[Table], Any]) -> None:
    table = created("MOR")
    table.upsert(batch(["b"], 30))
    with pytest.raises(UserError, match="have the record key 'a', and a log changes one of them only; nothing"):
        change(table)
    assert rows(table) == [("a", 1), ("a", 2), ("b", 30)]
    table.services.compaction.run(force=True)
    change(table)
    assert rows(table) == ([("b", 30)] if change is deleted else [("a", 9), ("a", 9), ("b", 30)])


def test_delete_from_a_bucket_refuses_a_repeated_key_and_deletes_others() -> None:
    table = created("MOR", "BUCKET", **{"hoodie.bucket.index.num.buckets": "1"})
    with pytest.raises(UserError, match="have the record key 'a', and a log deletes one of them only; nothing was"):
        deleted(table)
    with pytest.raises(UserError, match="a log deletes one of them only"):
        table.delete_where("id = 'a'")
    table.delete(["b"])
    assert rows(table) == [("a", 1), ("a", 2)]
    table.insert_overwrite_table(batch(["a"], 1))
    deleted(table)
    assert rows(table) == []
