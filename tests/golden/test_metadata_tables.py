"""Metadata tables of Apache Hudi: the merged records equal those that Hudi's own classes return."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.metadata.locations import LOCATION_ROWS
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.state.data_files import LISTING
from lakehouse.core.state.file_system_view import DataFile
from lakehouse.core.storage.local import LocalStorage
from lakehouse.model.instant import Action
from tests.support.fixture_tables import FixtureTable, load_fixture_tables
from tests.support.shared import fixtures

TABLES = (
    "cow_all_indexes",
    "cow_partitioned_record_index",
    "mor_consistent_dual_write",
    "mor_consistent_hashing",
    "mor_crashed_ahead",
    "mor_log_compacted",
    "mor_services",
    "mor_v6",
    "mor_v8",
)
PAYLOADS = ("filesystemMetadata", "BloomFilterMetadata", "ColumnStatsMetadata", "recordIndexMetadata")


@pytest.fixture(params=TABLES)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, LoadedTable]:
    """A table whose metadata table Hudi wrote, and its name."""
    with zipfile.ZipFile(fixtures(f"hudi_metadata/tables/{request.param}.zip")) as archive:
        archive.extractall(tmp_path)
    (root,) = [path.parent for path in tmp_path.rglob(".hoodie") if (path / "hoodie.properties").exists()
               and path.parent.name != "metadata"]  # fmt: skip
    return request.param, load_table(Env(storage=LocalStorage(str(root))))


def opened(table: LoadedTable) -> MetadataTable:
    found = metadata_of(table)
    assert found is not None
    return found


def expected_records(name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    path = fixtures(f"hudi_metadata/tables/{name}.metadata.jsonl")
    for partition, record in map(json.loads, path.read_text("utf-8").splitlines()):
        found.setdefault(partition, []).append(record)
    return found


def test_merged_records_equal_those_of_hudi(fixture: tuple[str, LoadedTable]) -> None:
    name, table = fixture
    metadata = opened(table)
    expected = expected_records(name)
    assert set(expected) == set(metadata.usable)
    for partition, records in expected.items():
        found = metadata.records(partition)
        check = CHECKS["filesystemMetadata" if partition == "files" else payload_of(records[0])]
        check(found, records)


def payload_of(record: dict[str, Any]) -> str:
    return next((name for name in PAYLOADS if record.get(name) is not None), "SecondaryIndexMetadata")


def check_files(found: pa.Table, records: list[dict[str, Any]]) -> None:
    expected = {
        (record["key"], name, info["size"])
        for record in records
        for name, info in record["filesystemMetadata"].items()
        if not info["isDeleted"]
    }
    live = found.filter(pc.invert(found.column("deleted"))).to_pylist()
    assert {(row["key"], row["name"], row["size_bytes"]) for row in live} == expected
    assert len(live) == len(expected)


def check_statistics(found: pa.Table, records: list[dict[str, Any]]) -> None:
    rows = {row["key"]: row for row in found.to_pylist()}
    assert set(rows) == {record["key"] for record in records} and len(rows) == found.num_rows
    for record in records:
        row, info = rows[record["key"]], record["ColumnStatsMetadata"]
        assert (row["name"], row["column"], row["type"]) == (info["fileName"], info["columnName"], record["type"])
        assert (row["value_count"], row["null_count"]) == (info["valueCount"], info["nullCount"])
        assert (row["size_bytes"], row["uncompressed_bytes"]) == (info["totalSize"], info["totalUncompressedSize"])
        assert (row["tight"], row["deleted"]) == (info["isTightBound"], info["isDeleted"])
        kind = info["valueType"] or {"typeOrdinal": None, "additionalInfo": None}
        assert (row["type_ordinal"], row["type_info"]) == (kind["typeOrdinal"], kind["additionalInfo"])
        for bound in ("min", "max"):
            value = (info[f"{bound}Value"] or {}).get("value")
            held = [row[f"{bound}_{part}"] for part in ("number", "real", "data")]
            if isinstance(value, str):
                # The JSON has bytes as characters up to U+00FF.
                texts = (
                    [value.encode(), value.encode("latin-1")]
                    if value.isascii() or max(value) <= "\xff"
                    else [value.encode()]
                )
                assert held[2] in texts
            else:
                assert [part for part in held if part is not None] == ([] if value is None else [value])


def check_locations(found: pa.Table, records: list[dict[str, Any]]) -> None:
    def file_id(info: dict[str, Any]) -> str:
        if info["fileIdEncoding"]:
            return str(info["fileId"])
        text = "".join(f"{info[f'fileId{part}Bits'] & (1 << 64) - 1:016x}" for part in ("High", "Low"))
        uuid = "-".join(text[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        return uuid if info["fileIndex"] < 0 else f"{uuid}-{info['fileIndex']}"

    expected = sorted(
        (record["key"], info["partitionName"], file_id(info), info["instantTime"])
        for record in records
        for info in [record["recordIndexMetadata"]]
    )
    assert found.schema == LOCATION_ROWS
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected


def check_blooms(found: pa.Table, records: list[dict[str, Any]]) -> None:
    def digest(value: Any) -> Any:
        data = value if isinstance(value, bytes) else value.encode("latin-1")
        return {"bytes": len(data), "md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}

    expected = {}
    for record in records:
        info = record["BloomFilterMetadata"]
        stored = info["bloomFilter"]
        expected[record["key"]] = (
            info["type"],
            info["timestamp"],
            stored if isinstance(stored, dict) else digest(stored),
        )
    rows = found.to_pylist()
    assert {row["key"]: (row["type"], row["instant"], digest(row["filter"])) for row in rows} == expected


def check_secondary(found: pa.Table, records: list[dict[str, Any]]) -> None:
    assert sorted(found.column("key").to_pylist()) == sorted(record["key"] for record in records)


CHECKS = {
    "filesystemMetadata": check_files,
    "ColumnStatsMetadata": check_statistics,
    "recordIndexMetadata": check_locations,
    "BloomFilterMetadata": check_blooms,
    "SecondaryIndexMetadata": check_secondary,
}


def pending_clusterings(table: LoadedTable) -> set[str]:
    return {i.requested for i in table.timeline if not i.is_completed and i.action is Action.CLUSTERING}


def require_equal_listings(table: LoadedTable) -> None:
    """Require that the metadata table lists the files of completed actions that storage has."""
    metadata = opened(table)
    completed = {instant.requested for instant in table.timeline if instant.is_completed}
    first = min(completed, default="")
    everything = {(file.partition, file.name, file.size_bytes): instant_of(file) for file in list_data_files(table)}
    committed = {place for place, time in everything.items() if time in completed or time < first}
    listing = metadata.listing()
    assert listing.schema == LISTING
    rows = [tuple(row.values()) for row in listing.to_pylist() if ".cdc" not in row["name"]]
    assert len(rows) == len(set(rows))
    # While a resize of buckets is pending, commits write logs whose names have the time of the resize.
    dual = {place for place, time in everything.items() if time in pending_clusterings(table)}
    assert committed <= set(rows) <= committed | dual
    paths = metadata.partition_paths().to_pylist()
    assert set(paths) >= {partition for partition, _, _ in committed}
    for path in paths:
        part = metadata.listing([path])
        assert part.sort_by("name").equals(listing.filter(pc.equal(listing["partition"], path)).sort_by("name"))
    assert metadata.listing(["no such partition"]).num_rows == 0


def instant_of(file: DataFile) -> str:
    """Return the time in the name of a file."""
    return file.instant


def test_listing_equals_the_committed_files_on_storage(fixture: tuple[str, LoadedTable]) -> None:
    require_equal_listings(fixture[1])


WITH_METADATA = [
    table
    for table in load_fixture_tables()
    if table.is_supported and any("/.hoodie/metadata/files/" in f"/{name}" for name in table.names())
]


@pytest.mark.parametrize("golden", WITH_METADATA, ids=[table.name for table in WITH_METADATA])
def test_every_golden_metadata_table_lists_the_files_on_storage(golden: FixtureTable, tmp_path: Path) -> None:
    require_equal_listings(load_table(Env(storage=LocalStorage(str(golden.unpack(tmp_path))))))
