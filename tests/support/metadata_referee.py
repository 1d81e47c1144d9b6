"""Check a metadata table with Apache Hudi's own classes: read it, and compare it with one that Hudi builds.

Hudi reads all merged records of the table's metadata table. Then it builds the metadata table of a copy of the table
from the copy's data files. Both must have the same content, except for what Hudi cannot find in data files: sizes of
columns, and the instants at which a key was inserted or a bloom filter was indexed.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.storage.locate import open_storage
from tests.support.hudi import Hudi
from tests.support.lock_bridge import compiled

SOURCE = Path(__file__).with_name("MetadataReferee.java")
LISTED = "hoodie.table.metadata.partitions"
#: Partitions that Hudi builds on request: their names and the options that request them.
_OPTIONS = {
    "column_stats": "hoodie.metadata.index.column.stats.enable",
    "partition_stats": "hoodie.metadata.index.partition.stats.enable",
    "bloom_filters": "hoodie.metadata.index.bloom.filter.enable",
    "record_index": "hoodie.metadata.global.record.level.index.enable",
}
_META_COLUMNS = ("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key")
_OPTIONAL = (["_hoodie_commit_seqno"], ["_hoodie_file_name"])
_LOCATION = ("partitionName", "fileIdHighBits", "fileIdLowBits", "fileIndex", "fileId", "fileIdEncoding")
_RANGE = ("fileName", "columnName", "valueCount", "nullCount", "isDeleted", "valueType")

#: The comparable content of a record, by metadata partition and key.
Records = dict[tuple[str, str], Any]


class MetadataReferee:
    """Reads and builds metadata tables with Apache Hudi; see the module."""

    def __init__(self, hudi: Hudi, home: Path) -> None:
        self._hudi, self._home, self._numbers = hudi, home, itertools.count(1)
        hudi.load_classes(compiled(home, SOURCE))

    def records(self, location: str) -> Records:
        """Return the merged records of a table's metadata table as Hudi reads them."""
        output = self._home / f"records-{next(self._numbers)}"
        self._hudi.call("MetadataReferee", f"records\n{location}\n{output}")
        found: Records = {}
        for line in output.read_text(encoding="utf-8").split("\n"):
            partition, _, text = line.partition("\t")
            if not partition:
                continue
            record = json.loads(text, strict=False)
            place = (partition, str(record["key"]))
            assert place not in found, f"{place} occurs twice"
            found[place] = content(record)
        return found

    def built(self, location: str) -> Records:
        """Return the records of a metadata table that Hudi builds for a copy of the table."""
        copy = self._home / f"copy-{next(self._numbers)}"
        shutil.copytree(location.removeprefix("file:"), copy)
        listed = _listed(copy)
        drop_metadata(Env(storage=open_storage(str(copy))))
        options = {"hoodie.metadata.enable": "true", "hoodie.metadata.auto.delete.partitions": "false"}
        options |= {option: str(partition in listed).lower() for partition, option in _OPTIONS.items()}
        if columns := _indexed_columns(copy):
            options["hoodie.metadata.index.column.stats.column.list"] = ",".join(columns)
        if version := _table_version(copy):
            options |= {"hoodie.write.table.version": version, "hoodie.write.auto.upgrade": "false"}
        text = ";".join(f"{key}={value}" for key, value in options.items())
        self._hudi.call("MetadataReferee", f"build\n{copy}\n{text}")
        return self.records(str(copy))

    def differences(self, location: str) -> list[str]:
        """Return how the metadata table differs from one that Hudi builds; empty if they are equal.

        Secondary and expression indexes are not compared, because they are not built by options.
        """
        stored, built = self.records(location), self.built(location)
        if _table_version(Path(location.removeprefix("file:"))):
            stored, built = _comparable(stored), _comparable(built)
        compared = {"files", *_OPTIONS} & set(_listed(Path(location.removeprefix("file:"))))
        found = []
        for place in sorted(stored.keys() | built.keys()):
            if place[0] in compared and stored.get(place) != built.get(place):
                found.append(f"{place}: stored {stored.get(place)}, built by Hudi {built.get(place)}")
        return found


@pytest.fixture(scope="module")
def metadata_referee(hudi: Hudi, tmp_path_factory: pytest.TempPathFactory) -> MetadataReferee:
    """Return the referee of metadata tables; tests that use it have the marker `jvm`."""
    return MetadataReferee(hudi, tmp_path_factory.mktemp("metadata_referee"))


def _listed(table: Path) -> tuple[str, ...]:
    properties = parse_properties((table / ".hoodie" / "hoodie.properties").read_bytes())
    return tuple(name for name in properties.get(LISTED, "").split(",") if name)


def _comparable(records: Records) -> Records:
    """Return the records of version 6 that each release builds.

    Only Hudi 0.15 has statistics of all meta columns, and Hudi 1.2 builds none of log files.
    """

    def differs(held: Any) -> bool:
        is_range = isinstance(held, list) and len(held) == len(_RANGE) + 2
        return is_range and (held[1:2] in _OPTIONAL or str(held[0]).startswith("."))

    return {place: held for place, held in records.items() if not differs(held)}


def _table_version(table: Path) -> str:
    """Return the version that an option must name, so that Hudi does not write the newest: 6, or an empty string."""
    properties = parse_properties((table / ".hoodie" / "hoodie.properties").read_bytes())
    return "6" if properties.get("hoodie.table.version") == "6" else ""


def _indexed_columns(table: Path) -> list[str]:
    path = table / ".hoodie" / ".index_defs" / "index.json"
    if not path.exists():
        return []
    definition = json.loads(path.read_text())["indexDefinitions"].get("column_stats", {})
    return [name for name in definition.get("sourceFields", ()) if name not in _META_COLUMNS]


def content(record: Mapping[str, Any]) -> Any:
    """Return the part of a record that two metadata tables of the same data have in common."""
    if record.get("filesystemMetadata") is not None:
        return {name: entry["size"] for name, entry in record["filesystemMetadata"].items() if not entry["isDeleted"]}
    if stats := record.get("ColumnStatsMetadata"):
        return [*(stats.get(name) for name in _RANGE), stats["minValue"], stats["maxValue"]]
    if bloom := record.get("BloomFilterMetadata"):
        return [bloom["type"], bloom["bloomFilter"]]
    if location := record.get("recordIndexMetadata"):
        return [location[name] for name in _LOCATION]
    return "present"
