"""The comparison of a metadata table with the files of its table finds each kind of difference."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.metadata.read.validity import Validity
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.undo import rollback
from lakehouse.core.table.table import Table
from tests.support.metadata_check import check_files, check_locations, check_metadata
from tests.support.tables import Shape, batch, make_table, row

OPTIONS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
}


def table_of(kind: str = "COPY_ON_WRITE") -> Table:
    table = make_table(Shape(type=kind, index="GLOBAL_SIMPLE", options=OPTIONS))
    table.insert(batch([row("k1"), row("k2", p="b")]))
    table.upsert(batch([row("k1", ts=5), row("k3", p="c")]))
    return table


def metadata_table(table: Table) -> MetadataTable:
    found = metadata_of(table.refresh())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_of_all_indexes_equals_the_files(kind: str) -> None:
    table = table_of(kind)
    check_metadata(table)
    table.delete(["k2"])
    check_metadata(table)
    table.insert_overwrite(batch([row("k4", p="c")]))
    check_metadata(table)
    assert set(metadata_table(table).usable) == {
        "files", "column_stats", "partition_stats", "bloom_filters", "record_index",
    }  # fmt: skip


def test_records_that_a_rollback_leaves_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of()
    last = table.timeline.instants[-1].requested
    monkeypatch.setattr(rollback, "_roll_back_metadata", lambda *_: None)
    table.rollback(last)
    metadata = metadata_table(table)
    with pytest.raises(AssertionError, match="listed, but not committed"):
        check_files(table.refresh(), metadata)
    with pytest.raises(AssertionError, match="in the index, but not in the table"):
        check_locations(metadata, table.scan().to_arrow())


def test_index_that_is_one_commit_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of()
    rows = table.scan().to_arrow()
    is_valid = Validity.is_valid

    def behind(validity: Validity, instant: str) -> Any:
        return is_valid(validity, instant) and instant != max(validity.written)

    monkeypatch.setattr(Validity, "is_valid", behind)
    metadata = metadata_table(table)
    with pytest.raises(AssertionError, match="not listed"):
        check_files(table.refresh(), metadata)
    with pytest.raises(AssertionError, match="not in the index"):
        check_locations(metadata, rows)
