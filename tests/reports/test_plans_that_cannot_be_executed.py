"""A plan of a table service that no executor can complete does not stay on the timeline, where it blocks others."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import Table
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table as OpenedTable
from lakehouse.errors import UserError
from tests.support.shared import fixtures

NO_INDEX = {"hoodie.index.type": "SIMPLE"}
RECORD_INDEX = {"hoodie.metadata.record.index.enable": "true"}


def pending(table: OpenedTable) -> list[str]:
    return [instant.action for instant in table.refresh().timeline if not instant.is_completed]


def with_text_for_numbers(table: OpenedTable, pattern: str = "*.parquet") -> None:
    """Replace the numbers in a base file by text, as a writer with another schema does."""
    path = min(Path(table.location).glob(pattern))
    rows = pq.read_table(path)
    at = rows.column_names.index("v")
    pq.write_table(rows.set_column(at, "v", pa.array(["no number"] * rows.num_rows)), path)


def test_clustering_keeps_repeated_keys_of_a_table_with_a_record_index(tmp_path: Path) -> None:
    """apache/hudi#7035, apache/hudi#9437: an insert of Hudi added a key again; the plan used to stay for ever."""
    with zipfile.ZipFile(fixtures("hudi_tables/mor_v9_nonpartitioned_rollback.zip")) as archive:
        archive.extractall(tmp_path)
    (properties,) = [path for path in tmp_path.rglob("hoodie.properties") if path.parent.parent.name != "metadata"]
    table = OpenedTable.open(str(properties.parents[1]))
    names = [name for name in table.scan().to_arrow().column_names if not name.startswith("_hoodie")]

    def rows() -> pa.Table:
        found = table.scan().to_arrow().select(names)
        return found.sort_by([("txn_id", "ascending"), ("amount", "ascending")])

    before = rows()
    assert before.column("txn_id").to_pylist().count("TXN-002") == 2
    assert isinstance(table.services.clustering.run(force=True), Committed)
    assert rows().equals(before) and pending(table) == []
    report = table.metadata.validate()
    assert report.ok and "record_index" in {check.partition for check in report.checks}
    # The record index leads an upsert to the key.
    table.upsert(before.filter(pa.compute.equal(before.column("txn_id"), "TXN-001")))
    assert rows().num_rows == before.num_rows


def test_clustering_of_rows_that_cannot_be_read_is_dropped_and_fails(tmp_path: Path) -> None:
    """apache/hudi#7035, apache/hudi#8944: a clustering that fails every time blocks archive and compaction."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], options=NO_INDEX)
    for key in "ab":
        table.bulk_insert(pa.table({"id": [key], "v": [1]}))
    with_text_for_numbers(table)
    for _ in range(2):
        with pytest.raises(UserError, match=r"the clustering \d+ was dropped: .*'v'"):
            table.services.clustering.run(force=True)
        assert pending(table) == []
    assert not list((tmp_path / "t/.hoodie").glob(".temp/*/*"))


def test_pending_clustering_of_another_process_is_dropped_by_the_run_that_cannot_complete_it(tmp_path: Path) -> None:
    """apache/hudi#8944: a plan that was scheduled before, by any process, is not left for the next run either."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], options=NO_INDEX)
    for key in "ab":
        table.bulk_insert(pa.table({"id": [key], "v": [1]}))
    table.services.clustering.schedule(force=True)
    assert pending(table) == ["clustering"]
    with_text_for_numbers(table)
    with pytest.raises(UserError, match="was dropped"):
        table.services.clustering.run()
    assert pending(table) == []


def test_compaction_of_rows_that_cannot_be_read_is_dropped_and_fails(tmp_path: Path) -> None:
    """apache/hudi#3105, apache/hudi#8944: a pending compaction holds its file groups and blocks the archive."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], table_type="MERGE_ON_READ", options=NO_INDEX)
    table.insert(pa.table({"id": ["a", "b"], "v": [1, 2]}))
    table.upsert(pa.table({"id": ["a"], "v": [3]}))
    with_text_for_numbers(table)
    with pytest.raises(UserError, match=r"the compaction \d+ was dropped"):
        table.services.compaction.run(force=True)
    assert pending(table) == []


def test_clustering_that_an_option_refuses_stays_pending(tmp_path: Path) -> None:
    """apache/hudi#7035: only a plan that no executor can complete is dropped, and no plan that an option refuses."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], partition_by=["p"], options=NO_INDEX)
    for key in "ab":
        table.bulk_insert(pa.table({"id": [key], "v": [1], "p": ["x"]}))
    table.services.clustering.schedule(force=True)
    refusing = Table.open(table.location, options={"hoodie.index.type": "BUCKET"})
    with pytest.raises(UserError):
        refusing.services.clustering.run()
    assert pending(table) == ["clustering"]
    assert isinstance(table.services.clustering.run(), Committed)


def test_index_of_repeated_keys_is_dropped_and_fails(tmp_path: Path) -> None:
    """apache/hudi#18029: a build of a record index meets a key twice; a pending build blocks the metadata table."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], options=NO_INDEX)
    for keys in (["a", "b"], ["a", "c"]):
        table.insert(pa.table({"id": keys}))
    indexing = Table.open(table.location, options=RECORD_INDEX)
    for _ in range(2):
        with pytest.raises(UserError, match=r"the indexing \d+ was dropped: record key 'a'"):
            indexing.services.index.run()
        assert pending(table) == []
    table = Table.open(table.location)
    assert "record_index" not in table.refresh().config.metadata_partitions
    table.upsert(pa.table({"id": ["d"]}))
    assert table.metadata.validate().ok
