"""Small commits take the fast path of the metadata table: its writes, look-ups and compactions use no tables."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.files import FilesPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.read import table as reading
from lakehouse.core.metadata.services import compaction
from tests.support.metadata_files import check_listing
from tests.support.tables import Shape, batch, make_table, row

OPTIONS = {"hoodie.metadata.enable": "true", "hoodie.metadata.compact.max.delta.commits": "3"}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_small_commit_records_and_compacts_without_tables(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(Shape(type=kind, options=OPTIONS))
    table.insert(batch([row("k1"), row("k2", p="b")]))

    def general(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a small commit uses the general code")

    merged = []
    small_merge = compaction.small_merge
    monkeypatch.setattr(compaction, "small_merge", lambda *args: merged.append(small_merge(*args)) or merged[-1])
    for partition in (FilesPartition, ColumnStatsPartition, PartitionStatsPartition):
        monkeypatch.setattr(partition, "update", general)
    monkeypatch.setattr(reading, "_listing_of_rows", general)
    monkeypatch.setattr(compaction, "_rewrite_many", general)
    for number in range(4):
        table.upsert(batch([row("k1", ts=9 + number), row(f"n{number}", p="c")]))
    assert merged
    assert None not in merged
    monkeypatch.undo()
    check_listing(table.refresh().env.storage)
