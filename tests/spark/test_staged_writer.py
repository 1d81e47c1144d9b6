"""Writes through staged rows, without a session: attempts count once, and rows that no commit has are deleted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakehouse import Table
from lakehouse.core.operations.write.frame_staging import StagedRows
from lakehouse.core.table.write_jobs import SaveMode
from lakehouse.errors import UserError
from lakehouse.spark.staged_writer import StagedWrite, commit_batch, commit_frame, query_key

SCHEMA = StructType([StructField("id", StringType()), StructField("ts", LongType())])
OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.operation": "insert",
}


def begun(folder: Path, mode: SaveMode = SaveMode.APPEND, **more: str) -> StagedWrite:
    write = StagedWrite.begin({**OPTIONS, **more, "path": str(folder / "t")}, SCHEMA, mode)
    # Spark sends it to the tasks and to the process that commits.
    copy: StagedWrite = pickle.loads(pickle.dumps(write))
    return copy


def staged(write: StagedWrite, *keys: str) -> StagedRows:
    rows = pa.table({"id": pa.array(keys, pa.string()), "ts": pa.array([1] * len(keys), pa.int64())})
    part = write.stage(iter(rows.to_batches(max_chunksize=2)))
    assert part is not None
    return part


def keys_of(folder: Path) -> list[str]:
    return sorted(Table.open(str(folder / "t")).scan(columns=["id"]).to_arrow().column("id").to_pylist())


def left(folder: Path) -> list[Path]:
    return [path for path in (folder / "t" / ".hoodie" / ".staging").rglob("*") if path.is_file()]


def test_rows_of_a_retried_and_of_a_speculative_attempt_count_once(tmp_path: Path) -> None:
    write = begun(tmp_path)
    staged(write, "a", "b")
    parts = [staged(write, "a", "b"), staged(write, "c")]
    assert write.stage(iter(())) is None
    commit_frame(write, parts)
    assert keys_of(tmp_path) == ["a", "b", "c"]
    assert left(tmp_path) == []


def test_rows_that_another_writer_of_the_same_write_staged_are_committed_and_deleted(tmp_path: Path) -> None:
    # Spark creates several writers for one batch of a stream.
    first, second = begun(tmp_path), begun(tmp_path)
    commit_batch(second, [staged(first, "a")], "lakehouse.stream.q", 0)
    commit_batch(second, [staged(first, "a")], "lakehouse.stream.q", 0)
    assert keys_of(tmp_path) == ["a"]
    assert left(tmp_path) == []


def test_failed_commit_deletes_the_staged_rows(tmp_path: Path) -> None:
    write = begun(tmp_path, **{"lakehouse.write.local.max.bytes": "50"})
    parts = [staged(write, "a", "b"), staged(write, "c", "d")]
    with pytest.raises(UserError, match=r"lakehouse\.spark\.write"):
        commit_frame(write, parts)
    assert left(tmp_path) == []
    assert keys_of(tmp_path) == []


def test_overwrite_by_no_rows_empties_the_table(tmp_path: Path) -> None:
    write = begun(tmp_path)
    commit_frame(write, [staged(write, "a")])
    commit_frame(begun(tmp_path), [])
    assert keys_of(tmp_path) == ["a"]
    commit_frame(begun(tmp_path, SaveMode.OVERWRITE), [])
    assert keys_of(tmp_path) == []


def test_checkpoint_folder_without_an_id_is_refused(tmp_path: Path) -> None:
    write, folder = begun(tmp_path), tmp_path / "checkpoint"
    folder.mkdir()
    with pytest.raises(UserError, match="has no file 'metadata'"):
        query_key({"checkpointLocation": str(folder)}, write.job)
    (folder / "metadata").write_text('{"id":"q"}')
    assert query_key({"checkpointlocation": str(folder)}, write.job) == "lakehouse.stream.q"
