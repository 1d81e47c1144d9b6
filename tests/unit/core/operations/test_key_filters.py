"""Reads that exclude base files by the bloom filters of record keys in the metadata table."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.table.table import Table
from tests.support.indexes import table_with_metadata
from tests.support.tables import batch, row

FILTERS = {"hoodie.metadata.index.bloom.filter.enable": "true", "hoodie.parquet.small.file.limit": "0"}
FILES, ROWS = 6, 20


def key(number: int) -> str:
    """Return a random key."""
    return blake2b(str(number).encode(), digest_size=6).hexdigest()


def rows(file: int) -> pa.Table:
    """Return the rows of one file; the first and the last key make the key ranges of all files overlap."""
    keys = [f"+{file}", *(key(file * ROWS + number) for number in range(ROWS)), f"~{file}"]
    return batch([row(id, v=str(file)) for id in keys])


def filtered_table(folder: Path, **options: str) -> Table:
    table = table_with_metadata(folder, options={**FILTERS, **options})
    for file in range(FILES):
        table.bulk_insert(rows(file))
    return table


def test_look_up_of_a_key_opens_the_file_whose_filter_has_it(tmp_path: Path) -> None:
    table = filtered_table(tmp_path)
    for number in range(0, FILES * ROWS, 17):
        scan = table.scan(["id", "v"], f"id = '{key(number)}'")
        step = scan.explain().step("bloom_filters")
        assert f"bloom filters of record keys exclude {FILES - 1} slices" in step.reason
        assert scan.to_arrow().to_pylist() == [{"id": key(number), "v": str(number // ROWS)}]
    assert table.scan(["id"], f"id IN ('{key(0)}', '{key(ROWS)}', 'absent')").count() == 2
    assert table.scan(["id"], "id = '5absent'").count() == 0


def test_filters_are_valid_for_earlier_versions(tmp_path: Path) -> None:
    table = filtered_table(tmp_path)
    third = table.timeline.writes().instants[2].requested
    assert table.scan(["id"], f"id = '{key(2 * ROWS)}'", as_of=third).count() == 1
    assert table.scan(["id"], f"id = '{key(3 * ROWS)}'", as_of=third).count() == 0


def test_slice_with_logs_is_kept(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, type="MERGE_ON_READ", options=FILTERS)
    for file in range(3):
        table.bulk_insert(rows(file))
    table.upsert(batch([row(key(0), v="new", ts=9)]))
    plan = table.scan(["id", "v"], f"id = '{key(ROWS)}'").explain()
    assert "exclude 1 slice" in plan.step("bloom_filters").reason
    assert table.scan(["v"], f"id = '{key(0)}'").to_arrow().to_pylist() == [{"v": "new"}]


@pytest.mark.parametrize("condition", ["v = '1'", "id > 'a'", "id = 'ä'", "id = 'a' OR v = '1'"])
def test_filters_are_not_read_for_other_conditions(
    condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filtered_table(tmp_path)
    monkeypatch.setattr(MetadataTable, "bloom_filters", lambda *_: pytest.fail("filters were read"))
    table.scan(["id"], condition).to_arrow()


def test_damaged_filter_excludes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filtered_table(tmp_path)
    read = MetadataTable.bloom_filters

    def damaged(metadata: MetadataTable, files: pa.Table) -> pa.Table:
        found = read(metadata, files)
        texts = pa.array([text[:40] for text in found.column("filter").to_pylist()], found.schema.field("filter").type)
        return found.set_column(found.schema.get_field_index("filter"), "filter", texts)

    monkeypatch.setattr(MetadataTable, "bloom_filters", damaged)
    scan = table.scan(["id"], f"id = '{key(5)}'")
    assert "bloom_filters" not in [step.name for step in scan.explain().steps]
    assert scan.count() == 1
