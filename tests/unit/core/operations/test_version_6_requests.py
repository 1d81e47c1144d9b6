"""Requests of commits and reads of tables of version 6 with a metadata table, counted on a local disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.metadata.read import known_definitions
from lakehouse.core.metadata.read.known_definitions import stored_columns
from lakehouse.core.metadata.read.table import COLUMN_STATS, MetadataTable, open_for_reading
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from tests.support.version_6 import batch, committed, created

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
each_kind = pytest.mark.parametrize("kind", KINDS)
STATISTICS = {"hoodie.metadata.index.column.stats.enable": "true"}
#: Folders that a commit lists: the timelines of the table when it is loaded, requested, started and completed, and each
#: folder of the metadata table once under the lock; the listing of the table is read before.
LISTED = {
    ".hoodie/metadata/.hoodie": 2,
    ".hoodie/metadata/files": 2,
    ".hoodie/metadata/column_stats": 1,
}


def counted(tmp_path: Path, kind: str) -> tuple[Table, CountingStorage]:
    created(tmp_path, kind, options=STATISTICS)
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    return Table.open(storage.root, env=Env(storage=storage)), storage


@each_kind
def test_commit_lists_each_folder_of_the_metadata_table_once_under_the_lock(kind: str, tmp_path: Path) -> None:
    table, storage = counted(tmp_path, kind)
    table.insert(batch(["a1", "b1"], 1, "x"))
    for number in range(2, 5):
        storage.reset()
        committed(table.upsert(batch(["a1"], number, "y")))
    listed = Counter(storage.listed())
    # Writes of log files also load the timeline when they start.
    assert listed == {**LISTED, ".hoodie": 3 if kind == "COPY_ON_WRITE" else 4}


@each_kind
def test_repeated_scan_reads_no_file_of_the_metadata_table(kind: str, tmp_path: Path) -> None:
    table, storage = counted(tmp_path, kind)
    table.insert(batch(["a1", "b1"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    first = table.scan().to_arrow()
    storage.reset()
    assert table.scan().to_arrow().equals(first)
    data_files = sum(not path.name.startswith(".hoodie") for path in Path(storage.root).glob("[ab]/*"))
    assert storage.counts()["GET"] <= data_files + 1
    assert Counter(storage.listed()) == {".hoodie": 1, ".hoodie/metadata/.hoodie": 1, ".hoodie/metadata/files": 1}


def test_look_up_of_keys_skips_logs_with_updates_only(tmp_path: Path) -> None:
    table, _ = counted(tmp_path, "MERGE_ON_READ")
    table.insert(batch(["a1", "a2"], 1, "x"))
    opened = []

    class Watching(LocalStorage):
        def open_input(self, path: str) -> Any:
            opened.append(path)
            return super().open_input(path)

    watched = Table.open(table.location, env=Env(storage=Watching(table.location)))
    watched.upsert(batch(["a1"], 2, "y"))
    watched.upsert(batch(["a1"], 3, "z"))
    assert not [path for path in opened if ".log." in path and not path.startswith(".hoodie/")]
    watched.delete(batch(["a2"], 4, "").select(["id", "p"]))
    watched.upsert(batch(["a2"], 5, "new"))
    # A log deletes a key, so all logs of the group are read.
    assert len({path for path in opened if ".log." in path and not path.startswith(".hoodie/")}) >= 2
    assert {row["id"]: row["v"] for row in watched.scan(["id", "v"]).to_arrow().to_pylist()} == {"a1": "z", "a2": "new"}


def test_indexed_columns_are_found_in_few_blocks_of_a_large_base_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, options=STATISTICS | {"hoodie.metadata.compact.max.delta.commits": "3"})
    for number in range(1, 8):
        table.insert(batch([f"a{number}", f"b{number}"], number, "x"))
    metadata = _metadata(table)
    (everything,) = stored_columns(metadata, {}).values()
    assert set(everything.source_fields) == {
        column for _, rows in metadata.records_of_groups(COLUMN_STATS) for column in rows["column"].to_pylist()
    }
    assert {"id", "v", "_hoodie_file_name"} <= set(everything.source_fields)
    monkeypatch.setattr(known_definitions, "DECODED_ROWS", 0)
    decoded = []
    decode = known_definitions.STATISTICS.decode

    class Counting:
        @staticmethod
        def decode(entries: pa.Table, schema: str) -> pa.Table:
            decoded.append(entries.num_rows)
            return decode(entries, schema)

    monkeypatch.setattr(known_definitions, "STATISTICS", Counting)
    assert stored_columns(_metadata(table), {}) == {COLUMN_STATS: everything}
    groups = [slice_.file_id for slice_ in metadata.slices(COLUMN_STATS)]
    layers = [layer for group in groups for layer in metadata.layers(COLUMN_STATS, group)]
    assert max(layer.count for layer in layers) > len(everything.source_fields) >= max(decoded[:1])


def test_column_without_live_records_is_not_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path, options=STATISTICS | {"hoodie.metadata.compact.max.delta.commits": "3"})
    for number in range(1, 6):
        table.insert(batch([f"a{number}"], number, "x"))
    metadata = _metadata(table)
    monkeypatch.setattr(known_definitions, "DECODED_ROWS", 0)
    real = MetadataTable.layers

    def layers(self: MetadataTable, partition: str, file_id: str) -> list[Any]:
        """Return the layers of the base file, and one that deletes all records of the column `v`."""
        stored = real(self, partition, file_id)[:1]
        rows = known_definitions.STATISTICS.decode(stored[0].entries(), stored[0].schema or "")
        keys = rows.filter(pa.compute.equal(rows["column"], "v"))["key"].combine_chunks()
        return [*stored, known_definitions.FileLayer("x", (0, 0), deletes=keys)]

    (everything,) = stored_columns(metadata, {}).values()
    monkeypatch.setattr(MetadataTable, "layers", layers)
    (definition,) = stored_columns(_metadata(table), {}).values()
    assert set(everything.source_fields) - set(definition.source_fields) == {"v"}


def _metadata(table: Table) -> MetadataTable:
    loaded = load_table(Env(storage=LocalStorage(table.location)))
    opened = open_for_reading(loaded.metadata, loaded.timeline)
    assert isinstance(opened, MetadataTable)
    return opened
