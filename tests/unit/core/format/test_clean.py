"""Test the codecs of clean plans and clean metadata, also for files of older releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.clean import (
    decode_clean_metadata,
    decode_clean_plan,
    encode_clean_metadata,
    encode_clean_plan,
)
from lakehouse.core.format.timeline.schemas import CLEAN_METADATA, CLEANER_PLAN
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.clean import CleanedPartition, CleanMetadata, CleanPlan
from lakehouse.model.instant import Action, Instant, State
from tests.support.tables import examples

BASE = "s3://lake/orders"
EARLIEST = Instant(requested="20250101000000000", action=Action.DELTACOMMIT, state=State.COMPLETED)

times = st.from_regex(r"2025\d{13}", fullmatch=True)
names = st.lists(st.from_regex(r"[a-z0-9]{1,9}_0-0-0_2025\d{3}\.parquet", fullmatch=True), max_size=3, unique=True)
partitions = st.sampled_from(["", "a", "day=2025-01-01/region=eu", "b c/ü"])
extras = st.dictionaries(st.sampled_from(["savepointed_timestamps", "x"]), times)
retained = st.none() | st.builds(
    Instant,
    requested=times,
    action=st.sampled_from([Action.COMMIT, Action.REPLACECOMMIT]),
    state=st.sampled_from(State),
)


@st.composite
def plans(draw: st.DrawFn) -> CleanPlan:
    files = draw(st.dictionaries(partitions, names))
    return CleanPlan(
        policy=draw(st.sampled_from(["KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS"])),
        earliest=draw(retained),
        last_completed=draw(times | st.just("")),
        files={path: tuple(f"{path}/{name}".lstrip("/") for name in listed) for path, listed in files.items()},
        partitions_to_delete=tuple(draw(st.lists(partitions, unique=True))),
        extra=draw(extras),
    )


cleaned = st.builds(
    CleanedPartition,
    policy=st.just("KEEP_LATEST_COMMITS"),
    deleted=names.map(tuple),
    failed=names.map(tuple),
    is_deleted=st.booleans(),
)
reports = st.builds(
    CleanMetadata,
    start_time=times,
    seconds=st.integers(0, 10**6).map(lambda ms: ms / 1000),
    earliest=times | st.just(""),
    last_completed=times,
    partitions=st.dictionaries(partitions, cleaned),
    extra=extras,
)


@examples(50)
@given(plan=plans(), report=reports)
def test_clean_plans_and_metadata_round_trip(plan: CleanPlan, report: CleanMetadata) -> None:
    data = encode_clean_plan(plan, base_path=BASE)
    assert decode_clean_plan(data, base_path=BASE) == plan
    assert decode_clean_plan(data, base_path="s3a://lake/orders/") == plan, "with another scheme"
    assert encode_clean_plan(decode_clean_plan(data, base_path=BASE), base_path=BASE) == data
    written = encode_clean_metadata(report)
    assert decode_clean_metadata(written) == report
    assert encode_clean_metadata(decode_clean_metadata(written)) == written


def test_counters_and_versions_equal_those_of_hudi() -> None:
    part = CleanedPartition(policy="KEEP_LATEST_COMMITS", deleted=("x", "y"), failed=("z",))
    report = CleanMetadata(start_time="1", seconds=1.5, earliest="", last_completed="2", partitions={"a": part})
    record = read_record(encode_clean_metadata(report), CLEAN_METADATA)
    assert (record["version"], record["totalFilesDeleted"], record["timeTakenInMillis"]) == (2, 2, 1500)
    assert record["bootstrapPartitionMetadata"] == {} and record["earliestCommitToRetain"] == ""
    assert record["partitionMetadata"]["a"]["deletePathPatterns"] == ["x", "y", "z"]
    plan = CleanPlan(policy="P", earliest=EARLIEST, last_completed="2", files={"a": ("a/x",)})
    stored = read_record(encode_clean_plan(plan, base_path=BASE), CLEANER_PLAN)
    assert stored["version"] == 2 and stored["filesToBeDeletedPerPartition"] == {}
    assert stored["filePathsToBeDeletedPerPartition"] == {
        "a": [{"filePath": f"{BASE}/a/x", "isBootstrapBaseFile": False}]
    }
    assert stored["earliestInstantToRetain"]["state"] == "COMPLETED"


def test_version_1_files_with_names_in_plans_and_paths_in_metadata_are_read() -> None:
    plan = {"policy": "P", "filesToBeDeletedPerPartition": {"a/b": ["x"], "": ["y"]}, "version": 1}
    read = decode_clean_plan(write_record(CLEANER_PLAN, plan), base_path=BASE)
    assert read.files == {"a/b": ("a/b/x",), "": ("y",)} and read.earliest is None and read.extra == {}
    part = {"partitionPath": "a", "policy": "P", "deletePathPatterns": [], "failedDeleteFiles": []}
    report = {
        "startCleanTime": "1",
        "timeTakenInMillis": 0,
        "totalFilesDeleted": 1,
        "earliestCommitToRetain": "",
        "partitionMetadata": {"a": {**part, "successDeleteFiles": [f"{BASE}/a/x"]}},
    }
    assert decode_clean_metadata(write_record(CLEAN_METADATA, report)).deleted == ("a/x",)


def test_plans_with_bootstrap_files_or_invalid_instants_are_refused() -> None:
    def stored(**fields: object) -> bytes:
        return write_record(CLEANER_PLAN, {"policy": "P", "version": 2, **fields})

    outside = stored(filePathsToBeDeletedPerPartition={"a": [{"filePath": f"{BASE}/b/x"}]})
    with pytest.raises(CorruptTableError, match="file 's3://lake/orders/b/x' of the clean is not in partition 'a'"):
        decode_clean_plan(outside, base_path=BASE)
    source = stored(filePathsToBeDeletedPerPartition={"a": [{"filePath": "/else/x", "isBootstrapBaseFile": True}]})
    with pytest.raises(UnsupportedError, match="'/else/x', a source file of a bootstrapped table"):
        decode_clean_plan(source, base_path=BASE)
    retained = stored(earliestInstantToRetain={"timestamp": "1", "action": "commit", "state": "GONE"})
    with pytest.raises(CorruptTableError, match="the plan's earliest instant to retain is invalid"):
        decode_clean_plan(retained, base_path=BASE)
