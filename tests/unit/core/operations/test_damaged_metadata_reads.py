"""Reads with a damaged metadata table return the right rows, and a warning names the damaged file."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.metadata.place import METADATA
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from lakehouse.spec.options.indexing import BLOOM_FILTERS_ENABLE, RECORD_INDEX_ENABLE

#: Conditions that read an index partition, by its name.
READS = {
    "files": "v >= 0",
    "column_stats": "v = 7",
    "partition_stats": "v = 7",
    "record_index": "id = 'k7'",
    "bloom_filters": "id = 'k7'",
    "secondary_index_city": "city = 'c7'",
    "expr_index_tail": "substring(city, 2, 9) = '7'",
}


def table_of_all_indexes(folder: Path, kind: str, *, record_index: bool) -> Table:
    """Return a table with all index partitions, or with those that need no record index."""
    options = {
        BLOOM_FILTERS_ENABLE: "true",
        RECORD_INDEX_ENABLE: str(record_index).lower(),
        "hoodie.index.type": "GLOBAL_SIMPLE",
        "hoodie.parquet.small.file.limit": "0",
        "lakehouse.index.expressions": "tail=substring(city, 2, 9)",
    } | ({"lakehouse.index.secondary": "city"} if record_index else {})
    table = Table.create(
        str(folder / "t"), name="t", record_key="id", partition_by="p", table_type=kind, options=options, ordering="v"
    )
    for start in (0, 6):
        rows = [{"id": f"k{n}", "p": "abc"[n % 3], "v": n, "city": f"c{n}"} for n in range(start, start + 6)]
        table.insert(pa.Table.from_pylist(rows))
    assert isinstance(table.services.index.run(), Indexed)
    rows = [{"id": f"k{n}", "p": "abc"[n % 3], "v": 100 + n, "city": f"d{n}"} for n in (1, 8)]
    table.upsert(pa.Table.from_pylist(rows))
    return table


def ids(table: Table, where: str) -> list[str]:
    return sorted(table.scan(["id"], where).to_arrow().column(0).to_pylist())


@pytest.fixture(scope="module", params=[True, False], ids=["record_index", "no_record_index"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Table, dict[str, list[str]]]:
    """Return a table and the rows of each condition on one of its indexes."""
    folder = tmp_path_factory.mktemp("damaged")
    table = table_of_all_indexes(folder, "COPY_ON_WRITE", record_index=request.param)
    # Without a record index, the bloom filters are read for a condition on record keys.
    names = [name for name in READS if name != "bloom_filters"] if request.param else ["bloom_filters"]
    return table, {name: ids(table, READS[name]) for name in names}


def damaged(data: bytes, damage: str) -> bytes:
    middle = len(data) // 2
    flipped = bytes(byte ^ 0xFF for byte in data[middle - 40 : middle + 40])
    return {"changed": data[: middle - 40] + flipped + data[middle + 40 :], "cut": data[:middle], "empty": b""}[damage]


@pytest.mark.parametrize("damage", ["changed", "cut", "empty"])
def test_read_with_a_damaged_metadata_file_returns_the_right_rows(
    damage: str, built: tuple[Table, dict[str, list[str]]]
) -> None:
    table, expected = built
    assert set(map(len, expected.values())) == ({1, 12} if "files" in expected else {1})
    for partition, rows in expected.items():
        for path in sorted((Path(table.location) / METADATA / partition).glob("*_*")):
            data = path.read_bytes()
            path.write_bytes(damaged(data, damage))
            assert ids(Table.open(table.location), READS[partition]) == rows, path.name
            path.write_bytes(data)


def test_warning_names_a_damaged_file_of_each_index(
    built: tuple[Table, dict[str, list[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    table, expected = built
    for partition, rows in expected.items():
        contents = {path: path.read_bytes() for path in (Path(table.location) / METADATA / partition).glob("*_*")}
        for path, data in contents.items():
            path.write_bytes(damaged(data, "cut"))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert ids(Table.open(table.location), READS[partition]) == rows
        assert any(path.name in record.getMessage() for record in caplog.records for path in contents), partition
        for path, data in contents.items():
            path.write_bytes(data)
