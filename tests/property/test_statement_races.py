"""Two statements at once have the effect of one after the other, whatever columns they set and read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.planning.changed_rows import ChangedRows

NUMBERS = itertools.count()
#: Rows by key: the columns x and y.
Rows = dict[str, tuple[int | None, int | None]]
Change = Callable[[Rows], Rows]
BASE: Rows = {"a": (1, 1), "b": (2, 2), "c": (3, 3)}
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
LOGS = {"hoodie.parquet.small.file.limit": "0"}
TABLES = {
    "COW": ("COW", OPTIMISTIC),
    "MOR": ("MOR", OPTIMISTIC | LOGS),
    "buckets": ("MOR", OPTIMISTIC | BUCKET),
    "non-blocking": ("MOR", NON_BLOCKING | BUCKET),
}
SOURCE = pa.table({"id": ["b", "c", "d"], "n": [20, 30, 40]})
NEW = dict(zip(SOURCE["id"].to_pylist(), SOURCE["n"].to_pylist(), strict=True))


def merge(table: Table) -> Any:
    return table.merge(SOURCE, ["id"])


def updated(rows: Rows, met: Callable[[str, Any, Any], bool], new: Callable[[str, Any, Any], Any]) -> Rows:
    return {key: new(key, *row) if met(key, *row) else row for key, row in rows.items()}


#: Statements, each with its effect on the rows.
STATEMENTS: dict[str, tuple[Callable[[Table], Any], Change]] = {
    "x + 10": (
        lambda t: t.update({"x": "x + 10"}),
        lambda rows: updated(rows, lambda *_: True, lambda _, x, y: (None if x is None else x + 10, y)),
    ),
    "y of low x": (
        lambda t: t.update({"y": "y * 2"}, "x < 3"),
        lambda rows: updated(rows, lambda _, x, __: x is not None and x < 3, lambda _, x, y: (x, y and y * 2)),
    ),
    "exchange": (
        lambda t: t.update({"x": "y", "y": "x"}, "id <> 'a'"),
        lambda rows: updated(rows, lambda key, *_: key != "a", lambda _, x, y: (y, x)),
    ),
    "delete of high y": (
        lambda t: t.delete_where("y > 2"),
        lambda rows: {key: row for key, row in rows.items() if not (row[1] is not None and row[1] > 2)},
    ),
    "merge into x": (
        lambda t: merge(t).when_matched_update({"x": "source.n"}).execute(),
        lambda rows: updated(rows, lambda key, *_: key in NEW, lambda key, _, y: (NEW[key], y)),
    ),
    "merge into y of low x": (
        lambda t: merge(t).when_matched_update({"y": "source.n"}, "target.x < 3").execute(),
        lambda rows: updated(
            rows, lambda key, x, _: key in NEW and x is not None and x < 3, lambda key, x, _: (x, NEW[key])
        ),
    ),
    "merge with insert": (
        lambda t: (
            merge(t)
            .when_matched_update({"y": "source.n"})
            .when_not_matched_insert({"id": "source.id", "y": "source.n"})
            .execute()
        ),
        lambda rows: {**rows, **{key: (rows[key][0] if key in rows else None, n) for key, n in NEW.items()}},
    ),
    "merge with delete": (
        lambda t: merge(t).when_matched_delete().when_not_matched_by_source_update({"x": "0"}).execute(),
        lambda rows: {key: (0, y) for key, (_, y) in rows.items() if key not in NEW},
    ),
}


def stored(table: Table) -> Rows:
    read = table.scan(columns=["id", "x", "y"]).to_arrow().to_pylist()
    assert len({row["id"] for row in read}) == len(read)
    return {row["id"]: (row["x"], row["y"]) for row in read}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("second", STATEMENTS)
@pytest.mark.parametrize("first", STATEMENTS)
def test_statements_at_once_have_the_effect_of_one_after_the_other(
    kind: str, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_type, options = TABLES[kind]
    location = f"memory://races/{next(NUMBERS)}"
    table = Table.create(location, name="t", record_key="id", table_type=table_type, options=options)
    columns = zip(*((key, *row) for key, row in BASE.items()), strict=True)
    table.upsert(pa.table(dict(zip(("id", "x", "y"), columns, strict=True))))
    (run, change), (rival, rival_change) = STATEMENTS[first], STATEMENTS[second]
    original, pending = ChangedRows.inserted, [Table.open(location, options=options)]

    def inserted(changes: ChangedRows) -> pa.Table:
        # The other statement commits after the first one has read the table.
        if pending:
            rival(pending.pop())
        return original(changes)

    monkeypatch.setattr(ChangedRows, "inserted", inserted)
    run(table)
    orders = (change(rival_change(BASE)), rival_change(change(BASE)))
    assert stored(table) in orders
    if table_type == "MOR":
        table.services.compaction.run(force=True)
        assert stored(table) in orders
    assert not table.validate(deep=True).findings
