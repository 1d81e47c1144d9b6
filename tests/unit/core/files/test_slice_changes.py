"""`read_changes`: base rows at other positions and the changed rows are the rows of `read_slice`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.files.base import base_reader
from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.log.slice_reader import read_changes, read_slice
from lakehouse.core.operations.read.scan import Scan
from tests.support.fixture_tables import canonical_rows

ONE_BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}


def rows(numbers: range, ts: int) -> pa.Table:
    """Return rows with an ordering value, a value that names the version, and a column that is sometimes null."""
    return pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "ts": [ts] * len(numbers),
            "v": [f"{n}-{ts}" for n in numbers],
            "w": pa.array([None if (n + ts) % 3 else n for n in numbers], pa.int64()),
        }
    )


def changed(path: Path, ordering: str | None) -> Table:
    """Return a table with one slice: updates, older updates that lose by event time, deletes and inserts in logs."""
    table = Table.create(
        str(path / "t"), name="t", record_key="id", ordering=ordering, table_type="MERGE_ON_READ", options=ONE_BUCKET
    )
    table.bulk_insert(rows(range(100), 5))
    table.upsert(rows(range(10, 20), 7))
    table.upsert(rows(range(15, 30), 3))
    table.delete([f"k{n}" for n in range(50, 55)])
    table.upsert(rows(range(98, 104), 6))
    return table


@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("budget", [1 << 30, 64 << 10])
def test_read_changes_completes_the_unchanged_base_rows(ordering: str | None, budget: int, tmp_path: Path) -> None:
    scan = (
        changed(tmp_path, ordering)
        .scan(
            columns=["id", "v", "w"],
        )
        .plan()
    )
    assert isinstance(scan, Scan)
    (file_slice,), context = scan.plan.slices, replace(scan.context, budget_bytes=budget)
    assert file_slice.base is not None and len(file_slice.logs) == 4
    merged = pa.concat_tables(piece for _, piece in read_slice(context, file_slice, scan.plan.schema))
    changes = list(read_changes(context, file_slice, scan.plan.schema))
    gone = [position for positions, _ in changes for position in positions.tolist()]
    assert len(gone) == len(set(gone)), "a base row is replaced or removed once"
    base = pa.concat_tables(BaseFileReader(scan.storage, file_slice.base.path).batches(scan.plan.schema))
    unchanged = base.take([n for n in range(base.num_rows) if n not in gone])
    pieces = pa.concat_tables([unchanged, *(piece for _, piece in changes)])
    assert canonical_rows(pieces) == canonical_rows(merged)
    # By event time, the older updates of ten rows lose.
    assert len(gone) == (10 if ordering else 20) + 5 + 2


@pytest.mark.parametrize(("ordering", "decoded"), [("ts", {"ts"}), (None, set())])
def test_read_changes_decodes_keys_and_ordering_columns_only(
    ordering: str | None, decoded: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = changed(tmp_path, ordering).scan().plan()
    assert isinstance(scan, Scan)
    (file_slice,) = scan.plan.slices
    columns: set[str] = set()
    original = base_reader.BaseFileReader._batches

    def recorded(self: BaseFileReader, names: list[str], *rest: Any, **options: Any) -> Any:
        columns.update(names)
        return original(self, names, *rest, **options)

    monkeypatch.setattr(base_reader.BaseFileReader, "_batches", recorded)
    assert list(read_changes(scan.context, file_slice, scan.plan.schema))
    assert columns == {"_hoodie_record_key"} | decoded
