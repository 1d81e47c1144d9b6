"""Two statements at once: those that set different columns of the same rows both commit, without a second read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.planning.changed_rows import ChangedRows
from lakehouse.errors import ConflictError, UserError

NUMBERS = itertools.count()
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
LOGS = {"hoodie.parquet.small.file.limit": "0"}
#: Type of table and options.
TABLES = {
    "COW": ("COW", OPTIMISTIC),
    "MOR": ("MOR", OPTIMISTIC | LOGS),
    "MOR, buckets": ("MOR", OPTIMISTIC | BUCKET),
    "MOR, buckets, non-blocking": ("MOR", NON_BLOCKING | BUCKET),
    "MOR, version 6": ("MOR", OPTIMISTIC | LOGS | {"hoodie.write.table.version": "6"}),
}
ROWS = pa.table({"id": ["a", "b"], "x": [1, 1], "y": [1, 1], "z": [5, 5]})


def created(kind: str, rows: pa.Table = ROWS, **declared: Any) -> tuple[Table, Table]:
    """Return a table with rows, and the same table as another writer opens it."""
    table_type, options = TABLES[kind]
    location = f"memory://conflicts/{next(NUMBERS)}"
    settings = {"name": "t", "record_key": "id", "table_type": table_type, "options": options}
    table = Table.create(location, **settings, **declared)
    table.upsert(rows)
    return table, Table.open(location, options={k: v for k, v in options.items() if "version" not in k})


def values(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows in order."""
    columns = [name for name in table.schema.names if not name.startswith("_hoodie")]
    return sorted(zip(*(table.scan().to_arrow().column(name).to_pylist() for name in columns), strict=True))


def racing(monkeypatch: pytest.MonkeyPatch, rival: Callable[[], object]) -> list[int]:
    """Let another writer commit after a statement has read the table and before it commits; return its runs."""
    original, runs = ChangedRows.inserted, list[int]()

    def inserted(changes: ChangedRows) -> pa.Table:
        runs.append(len(runs))
        if len(runs) == 1:
            rival()
            # The statement of the rival is not counted.
            del runs[1:]
        return original(changes)

    monkeypatch.setattr(ChangedRows, "inserted", inserted)
    return runs


def merged(table: Table, name: str, value: str, rows: pa.Table | pa.RecordBatchReader | None = None) -> Any:
    """Set one column of the rows of a source."""
    source = pa.table({"id": ["a"], "n": [10]}) if rows is None else rows
    return table.merge(source, ["id"]).when_matched_update({name: value}).execute()


@pytest.mark.parametrize("ordering", [None, "z"])
@pytest.mark.parametrize("kind", TABLES)
def test_merges_of_different_columns_both_commit_without_a_second_read(
    kind: str, ordering: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = created(kind, ordering=ordering)
    runs = racing(monkeypatch, lambda: merged(other, "y", "target.y + source.n"))
    merged(table, "x", "target.x + source.n", pa.table({"id": ["a", "b"], "n": [20, 30]}).to_reader())
    assert values(table) == [("a", 21, 11, 5), ("b", 31, 1, 5)]
    assert len(runs) == 1
    if kind != "COW":
        table.services.compaction.run(force=True)
        assert values(table) == [("a", 21, 11, 5), ("b", 31, 1, 5)]
    assert not table.validate(deep=True).findings


@pytest.mark.parametrize("kind", ["COW", "MOR", "MOR, buckets, non-blocking"])
def test_update_beside_a_merge_of_another_column(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = created(kind)
    runs = racing(monkeypatch, lambda: merged(other, "y", "target.y + source.n"))
    table.update({"x": "x + 20"}, where="x = 1 AND id = 'a'")
    assert values(table) == [("a", 21, 11, 5), ("b", 1, 1, 5)]
    assert len(runs) == 1


@pytest.mark.parametrize("kind", TABLES)
def test_merges_of_one_column_conflict_and_a_repeatable_source_is_merged_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = created(kind)
    rows = pa.table({"id": ["a"], "n": [20]})
    with monkeypatch.context() as context:
        racing(context, lambda: merged(other, "x", "target.x + source.n"))
        with pytest.raises(ConflictError, match="changed file group"):
            merged(table, "x", "target.x + source.n", rows.to_reader())
    assert values(table) == [("a", 11, 1, 5), ("b", 1, 1, 5)]
    runs = racing(monkeypatch, lambda: merged(other, "x", "target.x + source.n"))
    merged(table, "x", "target.x + source.n", rows)
    assert values(table) == [("a", 41, 1, 5), ("b", 1, 1, 5)]
    assert len(runs) == 2


RIVALS: dict[str, tuple[Callable[[Table], object], list[tuple[Any, ...]]]] = {
    "column of the condition": (lambda other: other.update({"y": "9"}, "id = 'a'"), [("a", 1, 9, 5), ("b", 2, 1, 5)]),
    "ordering column": (lambda other: other.update({"z": "6"}, "id = 'a'"), [("a", 2, 1, 6), ("b", 2, 1, 5)]),
    "deleted row": (lambda other: other.delete(["a"]), [("b", 2, 1, 5)]),
    "row deleted by a merge": (
        lambda other: other.merge(pa.table({"id": ["a"]}), ["id"]).when_matched_delete().execute(),
        [("b", 2, 1, 5)],
    ),
    "written row": (lambda other: other.upsert(ROWS.slice(0, 1)), [("a", 2, 1, 5), ("b", 2, 1, 5)]),
}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("kind", ["COW", "MOR", "MOR, buckets", "MOR, buckets, non-blocking"])
def test_statement_runs_again_if_columns_that_it_read_changed(
    kind: str, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = created(kind, ordering="z")
    change, expected = RIVALS[rival]
    runs = racing(monkeypatch, lambda: change(other))
    table.update({"x": "x + 1"}, where="y = 1")
    assert values(table) == expected
    assert len(runs) == 2


@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_column_that_every_row_needs_is_not_set_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    required = pa.schema([pa.field("id", pa.string()), pa.field("x", pa.int64()), pa.field("y", pa.int64(), False)])
    rows = pa.table({"id": ["a", "b"], "x": [1, 1], "y": [1, 1]}, schema=required)
    table, other = created(kind, rows, schema=required)
    runs = racing(monkeypatch, lambda: merged(other, "y", "source.n"))
    merged(table, "x", "source.n")
    assert values(table) == [("a", 10, 10), ("b", 1, 1)]
    assert len(runs) == 2


@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_row_that_moved_to_another_partition_is_not_moved_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"id": ["a", "b"], "p": ["p", "p"], "x": [1, 1], "y": [1, 1]})
    table_type, options = TABLES[kind]
    options = options | {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
    location = f"memory://conflicts/{next(NUMBERS)}"
    table = Table.create(location, name="t", record_key="id", partition_by="p", table_type=table_type, options=options)
    table.upsert(rows)
    other = Table.open(location, options=options)
    racing(monkeypatch, lambda: other.upsert(pa.table({"id": ["a"], "p": ["q"], "x": [1], "y": [9]})))
    table.update({"x": "x + 1"})
    assert values(table) == [("a", "q", 2, 9), ("b", "p", 2, 1)]


def test_statements_beside_inserts_and_deletes_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = created("MOR")
    source = pa.table({"id": ["b", "c"], "y": [7, 7]})
    rival = other.merge(source, ["id"]).when_matched_update({"y": "source.y"}).when_not_matched_insert_all()
    runs = racing(monkeypatch, rival.execute)
    table.update({"x": "0"}, where="z = 5 OR z IS NULL")
    assert values(table) == [("a", 0, 1, 5), ("b", 0, 7, 5), ("c", 0, 7, None)]
    assert len(runs) == 2


@pytest.mark.parametrize("kind", TABLES)
def test_merges_by_key_of_all_columns_of_their_sources(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a MERGE is an upsert, which does not read the table, so the other one commits before its files."""
    from lakehouse.core.operations.write import staged

    table, other = created(kind)
    original, pending = staged.look_up, [pa.table({"id": ["a"], "y": [2]})]

    def upserted(table: Table, source: Any) -> Any:
        return table.merge(source, ["id"]).when_matched_update_all().when_not_matched_insert_all().execute()

    def look_up(*arguments: Any) -> Any:
        result = original(*arguments)
        if pending:
            upserted(other, pending.pop())
        return result

    monkeypatch.setattr(staged, "look_up", look_up)
    upserted(table, pa.table({"id": ["a", "c"], "x": [3, 3]}).to_reader())
    assert values(table) == [("a", 3, 2, 5), ("b", 1, 1, 5), ("c", 3, None, None)]


def test_condition_on_a_meta_column_is_changed_by_each_write_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = created("MOR")
    first = table.commits()[0][0].requested
    runs = racing(monkeypatch, lambda: other.update({"y": "9"}, "id = 'a'"))
    table.update({"x": "x + 1"}, where=f"_hoodie_commit_time = '{first}'")
    assert values(table) == [("a", 1, 9, 5), ("b", 2, 1, 5)]
    assert len(runs) == 2


@pytest.mark.parametrize("change", [lambda t: t.update({"x": "1"}, "w = 1"), lambda t: t.delete_where("w = 1")])
def test_condition_on_a_missing_column_names_it(change: Callable[[Table], object]) -> None:
    table, _ = created("MOR")
    with pytest.raises(UserError, match="column 'w' is not in the table"):
        change(table)
