"""Test the codecs of savepoint metadata, restore plans and restore metadata."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from lakehouse.core.format.avro.object_file import write_record
from lakehouse.core.format.timeline.restore import (
    decode_restore_metadata,
    decode_restore_plan,
    decode_savepoint,
    encode_restore_metadata,
    encode_restore_plan,
    encode_savepoint,
)
from lakehouse.core.format.timeline.schemas import RESTORE_METADATA, RESTORE_PLAN, SAVEPOINT_METADATA, Schema
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import RollbackMetadata
from lakehouse.model.restore import RestoreMetadata, RestorePlan, SavepointMetadata

SAVEPOINT = SavepointMetadata(
    user="ann",
    at_ms=1_750_000_000_123,
    comment="before the backfill",
    files={"": ("root.parquet",), "p=1": ("a-0_0-1-2_1.parquet", ".a-0_2.log.1_0-1-2")},
)
PLAN = RestorePlan(target="20250101000000000", instants=(("3", "compaction"), ("2", "deltacommit")))
RESTORE = RestoreMetadata(
    start_time="4",
    seconds=1.5,
    instants=PLAN.instants,
    rollbacks={
        "2": (
            RollbackMetadata(
                start_time="5",
                seconds=0.25,
                target="2",
                action="deltacommit",
                deleted={"p=1": ("p=1/a.parquet", "p=1/.a.log")},
            ),
        ),
        "3": (RollbackMetadata(start_time="6", seconds=0.0, target="3", action="compaction", deleted={}),),
    },
)
# The schemas that Hudi 1.2 compiles into its classes; Java prints them into the headers of files.
_TEXT = '{"type":"string","avro.java.string":"String"}'
_INFO = (
    '{"type":"record","name":"HoodieInstantInfo","fields":[{"name":"commitTime","type":' + _TEXT + "},"
    '{"name":"action","type":' + _TEXT + "}]}"
)
HUDI_SAVEPOINT = (
    '{"type":"record","name":"HoodieSavepointMetadata","namespace":"org.apache.hudi.avro.model","fields":['
    '{"name":"savepointedBy","type":' + _TEXT + '},{"name":"savepointedAt","type":"long"},'
    '{"name":"comments","type":' + _TEXT + '},{"name":"partitionMetadata","type":{"type":"map","values":'
    '{"type":"record","name":"HoodieSavepointPartitionMetadata","fields":[{"name":"partitionPath","type":'
    + _TEXT
    + "},"
    '{"name":"savepointDataFile","type":{"type":"array","items":' + _TEXT + "}}]},"
    '"avro.java.string":"String"}},{"name":"version","type":["int","null"],"default":1}]}'
)
HUDI_PLAN = (
    '{"type":"record","name":"HoodieRestorePlan","namespace":"org.apache.hudi.avro.model","fields":['
    '{"name":"instantsToRollback","type":{"type":"array","items":' + _INFO + '},"default":[]},'
    '{"name":"version","type":["int","null"],"default":2},'
    '{"name":"savepointToRestoreTimestamp","type":["null",' + _TEXT + '],"default":null}]}'
)


def record_of(data: bytes) -> dict[str, Any]:
    (record,) = fastavro.reader(io.BytesIO(data))
    assert isinstance(record, dict)
    return record


def test_savepoint_metadata_round_trips() -> None:
    assert decode_savepoint(encode_savepoint(SAVEPOINT)) == SAVEPOINT
    record = record_of(encode_savepoint(SAVEPOINT))
    assert record["partitionMetadata"]["p=1"] == {
        "partitionPath": "p=1",
        "savepointDataFile": ["a-0_0-1-2_1.parquet", ".a-0_2.log.1_0-1-2"],
    }
    assert record["version"] == 1


def test_a_restore_plan_round_trips_with_its_target() -> None:
    assert decode_restore_plan(encode_restore_plan(PLAN)) == PLAN
    record = record_of(encode_restore_plan(PLAN))
    assert record["version"] == 2 and record["savepointToRestoreTimestamp"] == "20250101000000000"
    assert record["instantsToRollback"][0] == {"commitTime": "3", "action": "compaction"}


def test_a_restore_plan_of_version_1_has_no_target() -> None:
    data = write_record(RESTORE_PLAN, {"instantsToRollback": [{"commitTime": "2", "action": "commit"}], "version": 1})
    assert decode_restore_plan(data) == RestorePlan(target=None, instants=(("2", "commit"),))


@pytest.mark.parametrize("base", ["/data/t", "s3://lake/t"])
def test_restore_metadata_round_trips_with_absolute_paths_in_the_file(base: str) -> None:
    data = encode_restore_metadata(RESTORE, base_path=base)
    assert decode_restore_metadata(data, base_path=base) == RESTORE
    record = record_of(data)
    assert record["instantsToRollback"] == ["3", "2"]
    assert record["timeTakenInMillis"] == 1500
    (rollback,) = record["hoodieRestoreMetadata"]["2"]
    assert rollback["partitionMetadata"]["p=1"]["successDeleteFiles"] == [f"{base}/p=1/a.parquet", f"{base}/p=1/.a.log"]
    assert rollback["commitsRollback"] == ["2"] and rollback["totalFilesDeleted"] == 2


def test_restore_metadata_without_details_of_a_rollback_is_read() -> None:
    record = record_of(encode_restore_metadata(RESTORE, base_path="/t"))
    data = write_record(RESTORE_METADATA, record | {"hoodieRestoreMetadata": {"2": [None]}, "restoreInstantInfo": []})
    decoded = decode_restore_metadata(data, base_path="/t")
    assert decoded.rollbacks == {"2": ()} and decoded.instants == (("3", ""), ("2", ""))


@pytest.mark.parametrize(("ours", "theirs"), [(SAVEPOINT_METADATA, HUDI_SAVEPOINT), (RESTORE_PLAN, HUDI_PLAN)])
def test_schemas_equal_those_of_hudi(ours: Schema, theirs: str) -> None:
    assert ours == json.loads(theirs)


def test_a_file_of_another_record_type_is_refused() -> None:
    with pytest.raises(CorruptTableError, match="has a record HoodieRestorePlan; expected HoodieSavepointMetadata"):
        decode_savepoint(encode_restore_plan(PLAN))
