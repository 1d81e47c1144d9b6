"""Rollback plan and rollback metadata (format: timeline.md 4.7, 7.3).

Files hold absolute paths, values hold paths relative to the table's base. A table may have been moved, or be reached
by another scheme, since its rollback was planned, so a path is also accepted if its folder ends with the partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.format.avro_file import read_record, write_record
from lakehouse.format.schemas import ROLLBACK_METADATA, ROLLBACK_PLAN
from lakehouse.model.commit import RollbackMetadata, RollbackPlan, RollbackRequest

_FIRST_WITHOUT_ROLLBACK_BLOCKS = 8
_LOCAL_SCHEME = re.compile(r"file:/+")
_S3_SCHEME = re.compile(r"s3[an]://")


def encode_rollback_plan(plan: RollbackPlan, *, base_path: str) -> bytes:
    """Return the content of `rollback.requested`, with the files as paths below `base_path`."""
    requests = [
        {
            "partitionPath": request.partition,
            "fileId": "",
            "latestBaseInstant": "",
            "filesToBeDeleted": _absolute(base_path, request.files),
            "logBlocksToBeDeleted": {},
        }
        for request in plan.requests
    ]
    instant = {"commitTime": plan.target, "action": plan.action}
    return write_record(ROLLBACK_PLAN, {"instantToRollback": instant, "RollbackRequests": requests, "version": 1})


def decode_rollback_plan(data: bytes, *, base_path: str, table_version: int = 9) -> RollbackPlan:
    """Return the plan; log files of version 8 and later count as files to delete, whichever list holds them.

    Raises CorruptTableError for a path outside its partition, and UnsupportedError for a version 6 plan that takes back
    rows appended to an older log, which asks for a rollback block and not for a deletion.
    """
    record = read_record(data, ROLLBACK_PLAN)
    instant = record["instantToRollback"]
    if instant is None:
        raise CorruptTableError("the rollback plan names no instant to roll back")
    requests = []
    for request in record["RollbackRequests"] or ():
        logs = tuple(request["logBlocksToBeDeleted"] or ())
        if logs and table_version < _FIRST_WITHOUT_ROLLBACK_BLOCKS:
            raise UnsupportedError(
                f"the rollback of {instant['commitTime']} needs rollback blocks in log files of table version"
                f" {table_version}; run it with Hudi",
                logs=logs,
            )
        partition = request["partitionPath"]
        paths = dict.fromkeys((*request["filesToBeDeleted"], *logs))
        requests.append(RollbackRequest(partition=partition, files=_relative(base_path, partition, paths)))
    return RollbackPlan(target=instant["commitTime"], action=instant["action"], requests=tuple(requests))


def encode_rollback_metadata(metadata: RollbackMetadata, *, base_path: str) -> bytes:
    """Return the content of a completed rollback, with the files as paths below `base_path`."""
    return write_record(ROLLBACK_METADATA, rollback_record(metadata, base_path=base_path))


def rollback_record(metadata: RollbackMetadata, *, base_path: str) -> dict[str, Any]:
    """Return the record of a completed rollback, as it also stands in the metadata of a restore."""
    partitions: dict[str, dict[str, Any]] = {}
    for partition in sorted({*metadata.deleted, *metadata.failed}):
        partitions[partition] = {
            "partitionPath": partition,
            "successDeleteFiles": _absolute(base_path, metadata.deleted.get(partition, ())),
            "failedDeleteFiles": _absolute(base_path, metadata.failed.get(partition, ())),
            "rollbackLogFiles": {},
            "logFilesFromFailedCommit": {},
        }
    return {
        "startRollbackTime": metadata.start_time,
        "timeTakenInMillis": round(metadata.seconds * 1000),
        "totalFilesDeleted": sum(len(files) for files in metadata.deleted.values()),
        "commitsRollback": [metadata.target],
        "partitionMetadata": partitions,
        "version": 1,
        "instantsRollback": [{"commitTime": metadata.target, "action": metadata.action}],
    }


def decode_rollback_metadata(data: bytes, *, base_path: str) -> RollbackMetadata:
    """Return what a rollback did: `deleted` has every partition it touched, `failed` those where files are left.

    Raises CorruptTableError unless it names exactly one instant, as every rollback of Hudi does.
    """
    return rollback_metadata_of(read_record(data, ROLLBACK_METADATA), base_path=base_path)


def rollback_metadata_of(record: Mapping[str, Any], *, base_path: str) -> RollbackMetadata:
    """Return what the record of a rollback says; raise CorruptTableError as `decode_rollback_metadata` does."""
    if len(record["commitsRollback"]) != 1:
        raise CorruptTableError(f"a rollback names one instant, not {record['commitsRollback']}")
    target = record["commitsRollback"][0]
    actions = {info["commitTime"]: info["action"] for info in record["instantsRollback"]}
    deleted, failed = {}, {}
    for partition, part in record["partitionMetadata"].items():
        deleted[partition] = _relative(base_path, partition, part["successDeleteFiles"])
        if part["failedDeleteFiles"]:
            failed[partition] = _relative(base_path, partition, part["failedDeleteFiles"])
    return RollbackMetadata(
        start_time=record["startRollbackTime"],
        seconds=record["timeTakenInMillis"] / 1000,
        target=target,
        action=actions.get(target, ""),
        deleted=deleted,
        failed=failed,
    )


def _absolute(base_path: str, paths: Iterable[str]) -> list[str]:
    base = _plain(base_path).rstrip("/")
    return [f"{base}/{path}" for path in paths]


def _relative(base_path: str, partition: str, paths: Iterable[str]) -> tuple[str, ...]:
    base = _canonical(base_path).rstrip("/")
    expected = f"{base}/{partition}".rstrip("/")
    relative = []
    for path in paths:
        folder, _, name = _canonical(path).rpartition("/")
        is_elsewhere = not f"{folder}/".startswith(f"{base}/")
        was_moved = is_elsewhere and (not partition or folder.endswith(f"/{partition}"))
        if not name or not (folder == expected or was_moved):
            raise CorruptTableError(f"file {path!r} of the rollback is not in partition {partition!r} of {base_path!r}")
        relative.append(f"{partition}/{name}" if partition else name)
    return tuple(relative)


def _plain(path: str) -> str:
    """Return a local path without scheme, as Hudi writes it; other paths as they are."""
    return _LOCAL_SCHEME.sub("/", path, count=1) if path.startswith("file:") else path


def _canonical(path: str) -> str:
    """Return one spelling for the schemes that mean the same place."""
    return _S3_SCHEME.sub("s3://", _plain(path), count=1)
