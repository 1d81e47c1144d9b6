"""Statements on unusual tables and values: what changes is compared with the rows that were expected."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.commit.results import Committed
from lakehouse.errors import UserError

NUMBERS = itertools.count()
KINDS = ("COW", "MOR")


def create(rows: pa.Table, kind: str = "COW", **declared: Any) -> Table:
    """Return a table with some rows."""
    declared.setdefault("record_key", "id")
    table = Table.create(f"memory://edges/{next(NUMBERS)}", name="t", table_type=kind, **declared)
    table.upsert(rows)
    return table


def values(table: Table, name: str = "v") -> list[Any]:
    """Return the values of a column in order."""
    return sorted(table.scan(columns=[name]).to_arrow().column(name).to_pylist())


@pytest.mark.parametrize("partition", [None, "at"])
@pytest.mark.parametrize("kind", KINDS)
def test_deletes_find_rows_whose_ordering_column_belongs_to_the_key(kind: str, partition: str | None) -> None:
    rows = pa.table({"id": [1, 1, 2, 3], "at": [1, 2, 3, 4], "v": [1, 2, 3, 4]})
    table = create(rows, kind, record_key=["id", "at"], ordering="at", partition_by=partition)
    deleted = table.delete_where("v = 2")
    assert isinstance(deleted, Committed)
    assert deleted.totals.deletes == 1
    assert values(table) == [1, 3, 4]
    table.merge(rows, on=["id", "at"]).when_matched_delete("source.v = 1").when_matched_update(
        {"v": "source.v * 10"}
    ).execute()
    assert values(table) == [30, 40]
    table.delete([{"id": 2, "at": 3}] if partition is None else pa.table({"id": [2], "at": [3]}))
    assert values(table) == [40]


@pytest.mark.parametrize(
    "strings",
    [
        pa.array(["b", "z"], pa.string_view()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.uint32()), pa.array(["b", "z"], pa.string_view())),
        pa.RunEndEncodedArray.from_arrays([1, 2], ["b", "z"]),
        pa.array(["b", "z"], pa.large_string()),
    ],
    ids=lambda strings: str(strings.type),
)
def test_merge_takes_strings_in_every_form_of_arrow(strings: pa.Array) -> None:
    table = create(pa.table({"id": ["a", "b"], "v": ["x", "y"]}))
    source = pa.table({"id": strings, "v": strings, "st": pa.array([{"q": "1"}, {"q": "2"}])})
    nested = pa.array([{"q": "1"}, {"q": "2"}], pa.struct([("q", pa.string_view())]))
    source = source.set_column(2, "st", nested)
    for rows in (source, source.to_reader(), source.combine_chunks().to_batches()[0]):
        table.merge(rows, on=["id"]).when_matched_update({"v": "source.v || source.st.q"}).execute()
    assert values(table) == ["b1", "x"]
    merge = table.merge(source, on=["id"]).when_matched_delete("source.st.q = '1'")
    merge.when_not_matched_insert({"id": "source.id", "v": "source.v"}).execute()
    assert values(table) == ["x", "z"]


@pytest.mark.parametrize(("key", "stored"), [(["id"], "id:2"), (["id", "v"], "id:2,v:2")])
def test_delete_refuses_strings_that_are_no_keys_of_the_table(key: list[str], stored: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "v": [1, 2, 3], "p": ["x", "x", "y"], "q": ["x", None, "y"]})
    table = create(rows, record_key=key, partition_by=["p", "q"])
    for wrong in (["2"], ["id:1,v:1", "2"], "2"):
        with pytest.raises(
            UserError, match=rf"'2' is not a record key of t: .*'{stored.partition(',')[0][:3]}"
        ) as error:
            table.delete(wrong)
        assert "pyarrow.table({'id': [...]" in str(error.value)
    with pytest.raises(UserError, match=r"pyarrow.table\(\{'id': \[2\]|'id': \[1\]"):
        table.delete([2])
    table.delete([stored])
    assert values(table) == [1, 3]
    table.delete(rows.select([*key]).slice(0, 1))
    assert values(table) == [3]


@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"])
@pytest.mark.parametrize("kind", KINDS)
def test_column_of_nulls_without_type_has_the_type_of_the_table(kind: str, operation: str) -> None:
    rows = pa.table({"id": [1], "v": ["x"], "st": [{"a": [1]}], "at": pa.array([1], pa.timestamp("us", "UTC"))})
    table = create(rows, kind)
    schema = table.schema
    getattr(table, operation)(pa.table({"id": [2], "v": pa.nulls(1), "st": pa.nulls(1), "at": pa.nulls(1)}))
    assert table.schema == schema
    assert table.scan(where="id = 2 AND v IS NULL AND st IS NULL AND at IS NULL").count() == 1
    with pytest.raises(UserError, match="column 'new' has no type"):
        getattr(table, operation)(pa.table({"id": [3], "new": pa.nulls(1)}))
