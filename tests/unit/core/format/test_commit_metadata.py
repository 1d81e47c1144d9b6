"""Test the codecs of commit, replace and rollback metadata."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import fastavro
import pytest

from lakehouse.core.format.avro.object_file import write_record
from lakehouse.core.format.timeline.commit_metadata import (
    decode_commit,
    decode_requested_replace,
    encode_requested_replace,
)
from lakehouse.core.format.timeline.rollback import (
    decode_rollback_metadata,
    decode_rollback_plan,
    encode_rollback_metadata,
    encode_rollback_plan,
)
from lakehouse.core.format.timeline.schemas import COMMIT_METADATA, REQUESTED_REPLACE_METADATA, ROLLBACK_PLAN
from lakehouse.core.layout.registry import table_layout
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.commit import CommitMetadata, RollbackMetadata, RollbackPlan, RollbackRequest, WriteStat

NEW = WriteStat(
    partition="day=1", file_id="a-0", path="day=1/a-0_0-1-2_1.parquet", num_writes=3, num_inserts=3, size_bytes=99
)
REWRITTEN = WriteStat(
    partition="day=1",
    file_id="b-0",
    path="day=1/b-0_0-1-2_2.parquet",
    prev_commit="20250101000000000",
    prev_base_file="b-0_0-0-0_20250101000000000.parquet",
    num_writes=5,
    num_inserts=1,
    num_updates=2,
    num_deletes=1,
    size_bytes=120,
    seconds=1.25,
)
COMMIT = CommitMetadata(operation="UPSERT", stats=(NEW, REWRITTEN), extra={"schema": "{}", "k": "\u00e9"})


def record_of(data: bytes) -> dict[str, object]:
    (record,) = fastavro.reader(io.BytesIO(data))
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_commit_round_trips_in_each_table_version(version: int) -> None:
    assert decode_commit(table_layout(version).encode_commit(COMMIT)) == COMMIT


@pytest.mark.parametrize("version", [6, 9])
def test_a_replacecommit_keeps_its_replaced_file_groups(version: int) -> None:
    overwrite = replace(COMMIT, operation="INSERT_OVERWRITE", replaced={"day=1": ("c-0", "d-0"), "": ()})
    assert decode_commit(table_layout(version).encode_commit(overwrite, replace=True)) == overwrite
    with pytest.raises(CorruptTableError, match="only a replacecommit"):
        table_layout(version).encode_commit(overwrite)


def test_counters_are_zero_and_never_null() -> None:
    (stat, other) = record_of(table_layout(9).encode_commit(COMMIT))["partitionToWriteStats"]["day=1"]  # type: ignore[index]
    assert stat["prevCommit"] == "null" and stat["prevBaseFile"] is None
    assert stat["fileSizeInBytes"] == stat["totalWriteBytes"] == 99
    assert {stat[name] for name in ("numDeletes", "totalWriteErrors", "numUpdates", "totalLogReadTimeMs")} == {0}
    assert other["runtimeStats"] == {"totalScanTime": 0, "totalCreateTime": 0, "totalUpsertTime": 1250}


def test_empty_extra_metadata_is_encoded_as_a_map() -> None:
    record = record_of(table_layout(8).encode_commit(CommitMetadata(operation="delete")))
    assert record["extraMetadata"] == {} and record["partitionToWriteStats"] == {}
    assert record["operationType"] == "DELETE"


def test_equal_metadata_is_encoded_as_equal_bytes_for_any_map_order() -> None:
    turned = replace(COMMIT, extra=dict(reversed(COMMIT.extra.items())))
    assert table_layout(9).encode_commit(turned) == table_layout(9).encode_commit(COMMIT)


def test_the_container_header_has_only_the_schema() -> None:
    reader = fastavro.reader(io.BytesIO(table_layout(9).encode_commit(COMMIT)))
    assert list(reader.metadata) == ["avro.schema"]
    assert json.loads(reader.metadata["avro.schema"])["name"] == "HoodieCommitMetadata"


def test_an_inflight_profile_has_stats_without_paths() -> None:
    profile = CommitMetadata(
        operation="UPSERT",
        stats=(
            WriteStat(partition="p", file_id="", path="", num_inserts=7),
            WriteStat(partition="p", file_id="b-0", path="", prev_commit="20250101000000000", num_updates=2),
        ),
    )
    data = table_layout(9).encode_inflight(profile)
    assert decode_commit(data) == profile
    (stat, _) = record_of(data)["partitionToWriteStats"]["p"]  # type: ignore[index]
    assert (stat["fileId"], stat["path"], stat["partitionPath"], stat["runtimeStats"]) == ("", None, None, None)


def test_a_log_stat_names_its_log_file() -> None:
    name = ".b-0_20250102000000000.log.1_0-1-2"
    stat = WriteStat(partition="", file_id="b-0", path=name, prev_commit="20250102000000000", num_updates=1)
    data = table_layout(9).encode_commit(CommitMetadata(operation="UPSERT", stats=(stat,)))
    (written,) = record_of(data)["partitionToWriteStats"][""]  # type: ignore[index]
    assert (written["logFiles"], written["baseFile"], written["logVersion"]) == ([name], "", 1)
    assert decode_commit(data).stats == (stat,)


def test_a_version_6_log_stat_keeps_values_that_its_path_lacks() -> None:
    names = tuple(f".b-0_20250101000000000.log.{number}_0-1-2" for number in (1, 2))
    stat = WriteStat(
        partition="", file_id="b-0", path=names[1], prev_commit="1", base_file="b-0_0-0-0_1.parquet", log_files=names
    )
    data = table_layout(6).encode_commit(CommitMetadata(operation="UPSERT", stats=(stat,)))
    (written,) = json.loads(data)["partitionToWriteStats"][""]
    assert (written["logVersion"], written["baseFile"], written["logFiles"]) == (2, stat.base_file, list(names))
    assert "numUpdates" not in written, "version 6 does not have the field"
    assert decode_commit(data).stats == (stat,)


@pytest.mark.parametrize("version", [6, 9])
def test_compaction_counts_and_change_logs_round_trip(version: int) -> None:
    stat = replace(
        REWRITTEN,
        log_records=9,
        log_blocks=3,
        log_files_compacted=2,
        log_bytes_compacted=777,
        updated_compacted=4,
        corrupt_blocks=1,
        cdc_files={".b-0_2.log.1_0-1-2.cdc": 55},
        event_time=(-5, 12),
    )
    data = table_layout(version).encode_commit(CommitMetadata(operation="COMPACT", stats=(stat,), compacted=True))
    record = json.loads(data) if version == 6 else record_of(data)
    (written,) = record["partitionToWriteStats"]["day=1"]
    counts = ("totalLogRecords", "totalLogBlocks", "totalLogFilesCompacted", "totalLogSizeCompacted")
    assert [written[name] for name in counts] == [9, 3, 2, 777]
    assert (written["totalUpdatedRecordsCompacted"], written["totalCorruptLogBlock"]) == (4, 1)
    assert (written["cdcStats"], written["minEventTime"], written["maxEventTime"]) == (dict(stat.cdc_files), -5, 12)
    assert decode_commit(data).stats == (stat,)


def test_unknown_operations_are_kept_and_missing_ones_are_unknown() -> None:
    assert decode_commit(b'{"operationType": "BUCKET_RESCALE", "new": [1]}').operation == "BUCKET_RESCALE"
    assert decode_commit(b"{}").operation == "UNKNOWN"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty file"),
        (b"hello", "neither Avro nor JSON"),
        (b"[1]", "not an object"),
        (b'{"partitionToWriteStats": 3}', "unexpected shape"),
        (b"Obj\x01\x00", "cannot be read"),
        (table_layout(9).encode_commit(COMMIT)[:-20], "cannot be read"),
        (encode_requested_replace(), "has a record HoodieRequestedReplaceMetadata; expected HoodieCommitMetadata or"),
    ],
)
def test_invalid_commit_metadata_is_corrupt(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptTableError, match=problem):
        decode_commit(data)


def test_a_container_without_exactly_one_record_is_corrupt() -> None:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(COMMIT_METADATA), [])
    with pytest.raises(CorruptTableError, match="0 HoodieCommitMetadata records"):
        decode_commit(out.getvalue())


def test_an_unknown_table_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="table version 10"):
        table_layout(10).encode_commit(COMMIT)


def test_the_request_of_an_overwrite_names_no_file_ids() -> None:
    assert decode_requested_replace(encode_requested_replace()) == {}
    assert decode_requested_replace(b"") == {}
    record = record_of(encode_requested_replace())
    assert set(record.values()) == {None} and len(record) == 4


def test_the_request_of_a_clustering_names_the_file_ids_it_rewrites() -> None:
    groups = [
        {"slices": [{"fileId": "a-0", "partitionPath": "p"}, {"fileId": "b-0", "partitionPath": "q"}]},
        {"slices": [{"fileId": "c-0", "partitionPath": "p"}]},
    ]
    data = write_record(
        REQUESTED_REPLACE_METADATA, {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": groups}}
    )
    assert decode_requested_replace(data) == {"p": ("a-0", "c-0"), "q": ("b-0",)}


PLAN = RollbackPlan(
    target="20250101000000000",
    action="commit",
    requests=(
        RollbackRequest(partition="day=1", files=("day=1/a.parquet", "day=1/b.parquet")),
        RollbackRequest(partition="", files=("c.parquet",)),
    ),
)


@pytest.mark.parametrize("base", ["/data/t", "/data/t/", "file:/data/t", "file:///data/t", "s3://lake/t"])
def test_a_rollback_plan_round_trips_for_each_form_of_the_base_path(base: str) -> None:
    assert decode_rollback_plan(encode_rollback_plan(PLAN, base_path=base), base_path=base) == PLAN


def test_a_rollback_plan_has_absolute_paths_and_can_be_read_after_a_move() -> None:
    data = encode_rollback_plan(PLAN, base_path="file:///data/t")
    (first, _) = record_of(data)["RollbackRequests"]  # type: ignore[misc]
    assert first["filesToBeDeleted"] == ["/data/t/day=1/a.parquet", "/data/t/day=1/b.parquet"]
    assert decode_rollback_plan(data, base_path="s3a://elsewhere/t") == PLAN


def test_log_files_in_a_rollback_plan_are_deleted_from_version_8_on() -> None:
    request = {
        "partitionPath": "p",
        "fileId": "a-0",
        "latestBaseInstant": "1",
        "filesToBeDeleted": ["s3a://lake/t/p/a.parquet", "s3a://lake/t/p/.a.log"],
        "logBlocksToBeDeleted": {"s3://lake/t/p/.b.log": 1, "s3a://lake/t/p/.a.log": 1},
    }
    record = {"instantToRollback": {"commitTime": "1", "action": "deltacommit"}, "RollbackRequests": [request]}
    data = write_record(ROLLBACK_PLAN, record)
    plan = table_layout(8).decode_rollback_plan(data, base_path="s3://lake/t")
    assert plan.requests == (RollbackRequest(partition="p", files=("p/a.parquet", "p/.a.log", "p/.b.log")),)
    of_6 = table_layout(6).decode_rollback_plan(data, base_path="s3://lake/t")
    assert of_6.requests == (
        RollbackRequest(partition="p", files=("p/a.parquet", "p/.a.log")),
        RollbackRequest(partition="p", file_id="a-0", base_instant="1", logs={".b.log": 1, ".a.log": 1}),
    )
    slice_plan = replace(of_6, requests=of_6.requests[1:])
    stored = encode_rollback_plan(slice_plan, base_path="s3://lake/t")
    assert table_layout(6).decode_rollback_plan(stored, base_path="s3://lake/t") == slice_plan


def test_log_blocks_of_an_unknown_slice_are_corrupt_in_version_6() -> None:
    request = {"partitionPath": "p", "fileId": "", "latestBaseInstant": "", "filesToBeDeleted": []}
    record = {
        "instantToRollback": {"commitTime": "1", "action": "deltacommit"},
        "RollbackRequests": [request | {"logBlocksToBeDeleted": {"/t": 1}}],
    }
    with pytest.raises(CorruptTableError, match="unknown file group"):
        table_layout(6).decode_rollback_plan(write_record(ROLLBACK_PLAN, record), base_path="/t")


@pytest.mark.parametrize(("partition", "path"), [("p", "q/x.parquet"), ("", "q/x.parquet"), ("p", "q/p/x.parquet")])
def test_a_path_outside_its_partition_is_corrupt(partition: str, path: str) -> None:
    request = RollbackRequest(partition=partition, files=(path,))
    data = encode_rollback_plan(replace(PLAN, requests=(request,)), base_path="/t")
    with pytest.raises(CorruptTableError, match="not in partition"):
        decode_rollback_plan(data, base_path="/t")


def test_rollback_metadata_round_trips() -> None:
    done = RollbackMetadata(
        start_time="20250102000000000",
        seconds=0.195,
        target="20250101000000000",
        action="commit",
        deleted={"": ("c.parquet",), "day=1": ("day=1/a.parquet", "day=1/b.parquet"), "q": ()},
        failed={"q": ("q/x.parquet",)},
    )
    data = encode_rollback_metadata(done, base_path="/data/t")
    assert decode_rollback_metadata(data, base_path="file:/data/t") == done
    assert record_of(data)["totalFilesDeleted"] == 3
