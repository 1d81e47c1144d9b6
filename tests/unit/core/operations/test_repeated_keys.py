"""Writes by key to tables in which several base rows have one key: all of them are changed, or the write is refused.

Apache Hudi 0.15 (copy-on-write) and Hudi 1.2 (merge-on-read, by positions in log blocks) change all rows, too. In
buckets of merge-on-read tables Hudi 1.2 changes one of them, so inserts store one row of a key there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from tests.support.foreign_writes import foreign

NUMBERS = itertools.count()
INDEXES = ("SIMPLE", "BLOOM", "GLOBAL_SIMPLE", "RECORD_INDEX")
#: Without small files, a merge-on-read table gets logs unless a key is repeated.
NO_SMALL_FILES = {"hoodie.parquet.small.file.limit": "0"}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}


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


@pytest.mark.parametrize("engine", ["SIMPLE", "CONSISTENT_HASHING"])
@pytest.mark.parametrize("verb", ["insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"])
def test_buckets_of_a_merge_on_read_table_have_one_row_of_a_key_from_the_first_insert(verb: str, engine: str) -> None:
    """A later write would change one of several rows only, because it appends a log without a look-up."""
    options = BUCKET | {"hoodie.index.bucket.engine": engine}
    table = Table.create(
        f"memory://repeated/{next(NUMBERS)}", name="t", record_key="id", table_type="MOR", options=options
    )
    outcome = getattr(table, verb)(batch(["a", "a", "b"], 1, 2, 3))
    assert (outcome.duplicates_dropped, outcome.rows) == (1, 2)
    assert "1 duplicate dropped" in str(outcome)
    assert rows(table) == [("a", 2), ("b", 3)]
    logged = table.insert(batch(["c", "c", "b"], 4, 5, 30))
    assert (logged.duplicates_dropped, logged.rows) == (1, 2)
    upserted(table)
    expected = [("a", 9), ("b", 30), ("c", 5)]
    assert rows(table) == expected
    table.services.compaction.run(force=True)
    assert rows(table) == expected
    assert not table.validate(deep=True).findings
    deleted(table)
    assert rows(table) == expected[1:]


def test_rows_marked_as_deletes_do_not_replace_inserted_rows_of_their_batch() -> None:
    table = Table.create(
        f"memory://repeated/{next(NUMBERS)}", name="t", record_key="id", table_type="MOR", options=BUCKET
    )
    marked = batch(["a", "a"], 1, 2).append_column("_hoodie_is_deleted", pa.array([False, True]))
    assert table.insert(marked).duplicates_dropped == 1  # type: ignore[union-attr]
    assert rows(table) == [("a", 1)]


def test_copy_on_write_buckets_keep_all_rows_of_an_insert_as_hudi_does() -> None:
    table = created("COW", "BUCKET", **{"hoodie.bucket.index.num.buckets": "1"})
    assert upserted(table).rows == 2
    assert rows(table) == BOTH


@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_services_and_reads_of_changes_keep_all_rows_of_a_key(kind: str) -> None:
    settings = {**NO_SMALL_FILES, "hoodie.index.type": "SIMPLE"}
    location = f"memory://repeated/{next(NUMBERS)}"
    table = Table.create(
        location, name="t", record_key="id", table_type=kind, options=settings, cdc="DATA_BEFORE_AFTER"
    )
    table.insert(batch(["a", "a", "b"], 1, 2, 3))
    table.insert(batch(["a", "c"], 7, 4))
    table.upsert(batch(["b"], 30))
    first = [("a", 1), ("a", 2), ("a", 7), ("b", 30), ("c", 4)]
    if kind == "MOR":
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    assert rows(table) == first
    read = table.incremental("earliest").to_arrow()
    assert sorted(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == first
    begin = table.commits()[-1][0].completed
    upserted(table)
    assert rows(table) == [("a", 9), ("a", 9), ("a", 9), ("b", 30), ("c", 4)]
    changes = table.incremental(begin, format="cdc").to_arrow().to_pylist()
    assert sorted((c["op"], c["before"]["v"], c["after"]["v"]) for c in changes) == [("u", n, 9) for n in (1, 2, 7)]


def with_foreign_rows(location: str) -> Table:
    """Return a merge-on-read table with buckets and two base rows of one key, as Apache Hudi stores them."""
    table = Table.create(location, name="t", record_key="id", options=BUCKET)
    table.insert(batch(["a", "a", "b"], 1, 2, 3))
    properties = Path(location, ".hoodie", "hoodie.properties")
    properties.write_text(properties.read_text().replace("COPY_ON_WRITE", "MERGE_ON_READ"))
    return Table.open(location, options=BUCKET)


def test_delete_from_a_bucket_refuses_a_repeated_key_and_deletes_others(tmp_path: Path) -> None:
    table = with_foreign_rows(str(tmp_path / "t"))
    with pytest.raises(UserError, match="have the record key 'a', and a log deletes one of them only; nothing was"):
        deleted(table)
    with pytest.raises(UserError, match="a log deletes one of them only"):
        table.delete_where("id = 'a'")
    table.delete(["b"])
    assert rows(table) == [("a", 1), ("a", 2)]
    assert [finding.invariant for finding in table.validate(deep=True).findings] == ["key.unique"]
    table.insert_overwrite_table(batch(["a"], 1))
    deleted(table)
    assert rows(table) == []


@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_statement_on_a_row_that_the_record_index_does_not_find_is_refused(kind: str) -> None:
    """The index has the place of the row that was inserted last, so a write by key would change that one."""
    options = NO_SMALL_FILES | {
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
    }
    location = f"memory://repeated/{next(NUMBERS)}"
    table = Table.create(location, name="t", record_key="id", table_type=kind, options=options)
    table.insert(batch(["a", "b"], 1, 2))
    with foreign():
        table.insert(batch(["a", "c"], 7, 3))
    source = pa.table({"w": [1]})
    for change in (
        lambda: table.update({"v": "0"}, "v = 1"),
        lambda: table.update({"v": "0"}),
        lambda: table.delete_where("v = 1"),
        lambda: table.delete_where("v > 0"),
        lambda: table.merge(source, "target.v = source.w").when_matched_update({"v": "0"}).execute(),
    ):
        with pytest.raises(UserError, match="several rows have the key"):
            change()
    before = [("a", 1), ("a", 7), ("b", 2), ("c", 3)]
    assert rows(table) == before
    table.update({"v": "v + 10"}, "v < 4 AND id <> 'a'")
    table.delete_where("id = 'c'")
    assert rows(table) == [("a", 1), ("a", 7), ("b", 12)]
