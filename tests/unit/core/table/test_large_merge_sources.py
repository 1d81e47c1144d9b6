"""Sources of MERGE that exceed their part of the memory budget: divided by hash into local files."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.table import merge_source
from lakehouse.errors import UserError

NUMBERS = itertools.count()
STORED, SOURCE = 3_000, 6_000
#: A quarter of it is for the source, which has about 140 kB.
SMALL = {"lakehouse.write.memory.budget": "200000"}


def source_rows() -> pa.Table:
    """Return rows for each second stored key, and as many new keys."""
    ids = np.arange(0, 2 * SOURCE, 2)
    return pa.table({"id": [f"k{number}" for number in ids], "v": pa.array(-ids), "w": pa.array(ids % 5)})


def created(kind: str = "COW") -> tuple[Table, dict[str, tuple[int, int]]]:
    """Return a table, and its rows by key."""
    table = Table.create(f"memory://large/{next(NUMBERS)}", name="t", record_key="id", table_type=kind)
    rows = {f"k{number}": (number, 0) for number in range(STORED)}
    table.upsert(pa.table({"id": list(rows), "v": range(STORED), "w": pa.array([0] * STORED, pa.int64())}))
    return table, rows


def by_key(rows: pa.Table) -> dict[str, tuple[int, int]]:
    """Return rows by key."""
    return {key: (v, w) for key, v, w in zip(*rows.to_pydict().values(), strict=True)}


def stored(table: Table) -> dict[str, tuple[int, int]]:
    """Return the stored rows by key."""
    return by_key(table.scan(columns=["id", "v", "w"]).to_arrow())


def stream(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=500)))


@pytest.mark.parametrize("form", [lambda rows: rows, stream])
def test_divided_source_gives_the_rows_of_one_part(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, expected = created("MOR")
    sizes: list[int] = []
    parts = merge_source.MergeSource.parts

    def observed(source: merge_source.MergeSource) -> Any:
        for number, part in parts(source):
            sizes.append(part.nbytes)
            yield number, part

    monkeypatch.setattr(merge_source.MergeSource, "parts", observed)
    (
        table.merge(form(source_rows()), "source.id = target.id")
        .when_matched_delete("source.w = 1")
        .when_matched_update({"v": "target.v + source.v"})
        .when_not_matched_insert_all("source.w < 3")
        .when_not_matched_by_source_update({"w": "9"}, "target.v < 1000")
        .execute(options=SMALL)
    )
    assert len(sizes) > 2
    assert max(sizes) <= 50_000
    incoming = by_key(source_rows())
    for key, (v, w) in list(expected.items()):
        if key not in incoming:
            expected[key] = (v, 9) if v < 1000 else (v, w)
        elif incoming[key][1] == 1:
            del expected[key]
        else:
            expected[key] = (v + incoming[key][0], w)
    known_keys = {f"k{number}" for number in range(STORED)}
    expected |= {key: row for key, row in incoming.items() if key not in known_keys and row[1] < 3}
    assert stored(table) == expected


def test_divided_upsert_checks_keys_and_writes_all_rows() -> None:
    table, expected = created()
    twice = pa.concat_tables([source_rows(), source_rows().slice(7, 1)])
    with pytest.raises(UserError, match=r"2 rows of the source have the key {'id': 'k14'}"):
        table.merge(twice, ["id"]).when_matched_update_all().when_not_matched_insert_all().execute(options=SMALL)
    assert stored(table) == expected
    merge = table.merge(stream(source_rows()), ["id"]).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(options=SMALL)
    expected |= by_key(source_rows())
    assert stored(table) == expected


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("source.v < target.v", "`on` has no equality of columns by which it can be divided"),
        ("source.v = target.v", "`on` compares other columns than the record key"),
    ],
)
def test_source_that_cannot_be_divided_is_refused(on: str, message: str) -> None:
    table, expected = created()
    with pytest.raises(UserError, match=message):
        table.merge(source_rows(), on).when_not_matched_insert_all().execute(options=SMALL)
    assert stored(table) == expected


def test_source_with_few_compared_values_is_refused() -> None:
    table, _ = created()
    source = source_rows().set_column(2, "w", pa.array([0] * SOURCE, pa.int64()))
    with pytest.raises(UserError, match="too few distinct values in the columns that `on` compares"):
        table.merge(source, "source.w = target.w").when_matched_delete().execute(options=SMALL)
