"""Rollback plan and rollback metadata (TL-4.7, TL-7.3).

The files contain absolute paths, the values contain paths relative to the table (see format.timeline.paths).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.paths import absolute_paths, relative_paths
from lakehouse.core.format.timeline.schemas import ROLLBACK_METADATA, ROLLBACK_PLAN
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import RollbackMetadata, RollbackPlan, RollbackRequest


def encode_rollback_plan(plan: RollbackPlan, *, base_path: str) -> bytes:
    """Return the content of `rollback.requested`, with the files as paths below `base_path`."""
    requests = [
        {
            "partitionPath": request.partition,
            "fileId": request.file_id,
            "latestBaseInstant": request.base_instant,
            "filesToBeDeleted": absolute_paths(base_path, request.files),
            "logBlocksToBeDeleted": dict(request.logs),
        }
        for request in plan.requests
    ]
    instant = {"commitTime": plan.target, "action": plan.action}
    return write_record(ROLLBACK_PLAN, {"instantToRollback": instant, "RollbackRequests": requests, "version": 1})


def decode_rollback_plan(data: bytes, *, base_path: str) -> RollbackPlan:
    """Decode a rollback plan; log files are files to delete, in whichever list they are.

    Raises CorruptTableError for a path outside its partition.
    """
    record = read_record(data, ROLLBACK_PLAN)
    instant = record["instantToRollback"]
    if instant is None:
        raise CorruptTableError("the rollback plan has no instant to roll back")
    requests = []
    for request in record["RollbackRequests"] or ():
        partition = request["partitionPath"]
        logs = _logs_of(request["logBlocksToBeDeleted"] or (), base_path, partition)
        paths = dict.fromkeys((*request["filesToBeDeleted"], *logs))
        requests.append(
            RollbackRequest(partition=partition, files=relative_paths(base_path, partition, paths, what="rollback"))
        )
    return RollbackPlan(target=instant["commitTime"], action=instant["action"], requests=tuple(requests))


def decode_slice_rollback_plan(data: bytes, *, base_path: str) -> RollbackPlan:
    """Decode a rollback plan of version 6: log blocks are rolled back by command blocks in their slices (V6-6.2).

    The file id and the base instant of a request determine the slice; the log files in it have several forms.

    Raises CorruptTableError for a path outside its partition, and for log blocks of an unknown slice.
    """
    record = read_record(data, ROLLBACK_PLAN)
    instant = record["instantToRollback"]
    if instant is None:
        raise CorruptTableError("the rollback plan has no instant to roll back")
    requests = []
    for request in record["RollbackRequests"] or ():
        partition, logs = request["partitionPath"], request["logBlocksToBeDeleted"] or {}
        paths = relative_paths(base_path, partition, request["filesToBeDeleted"], what="rollback")
        if paths:
            requests.append(RollbackRequest(partition=partition, files=paths))
        if not logs:
            continue
        file_id, base_instant = request["fileId"] or "", request["latestBaseInstant"] or ""
        if not file_id or not base_instant:
            raise CorruptTableError(
                f"the rollback plan of {instant['commitTime']} rolls back log blocks of an unknown file group in "
                f"{partition!r}: {sorted(logs)[0]}"
            )
        names = {key.rpartition("/")[2]: int(size or 0) for key, size in logs.items()}
        own = {name: size for name, size in names.items() if name.startswith(".")}
        requests.append(RollbackRequest(partition=partition, file_id=file_id, base_instant=base_instant, logs=own))
    return RollbackPlan(target=instant["commitTime"], action=instant["action"], requests=tuple(requests))


def _logs_of(keys: Iterable[str], base_path: str, partition: str) -> Iterator[str]:
    """Yield the log file paths in a request.

    A table that was upgraded keeps plans of version 6. Their keys are names of log files without folder, or the path of
    the table itself (V6-6.2).
    """
    folder = f"{base_path.rstrip('/')}/{partition}".rstrip("/")
    for key in keys:
        if "/" not in key:
            yield f"{folder}/{key}"
        elif key.rpartition("/")[2].startswith("."):
            # Names of log files begin with a dot, names of table folders do not.
            yield key


def encode_rollback_metadata(metadata: RollbackMetadata, *, base_path: str) -> bytes:
    """Return the content of a completed rollback, with the files as paths below `base_path`."""
    return write_record(ROLLBACK_METADATA, rollback_record(metadata, base_path=base_path))


def rollback_record(metadata: RollbackMetadata, *, base_path: str) -> dict[str, Any]:
    """Return the Avro record of a completed rollback, which restore metadata contains, too."""
    partitions: dict[str, dict[str, Any]] = {}
    for partition in sorted({*metadata.deleted, *metadata.failed, *metadata.command_logs, *metadata.failed_logs}):
        partitions[partition] = {
            "partitionPath": partition,
            "successDeleteFiles": absolute_paths(base_path, metadata.deleted.get(partition, ())),
            "failedDeleteFiles": absolute_paths(base_path, metadata.failed.get(partition, ())),
            "rollbackLogFiles": _absolute_sizes(base_path, metadata.command_logs.get(partition, {})),
            "logFilesFromFailedCommit": _absolute_sizes(base_path, metadata.failed_logs.get(partition, {})),
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


def _absolute_sizes(base_path: str, sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(absolute_paths(base_path, sizes), sizes.values(), strict=True))


def decode_rollback_metadata(data: bytes, *, base_path: str) -> RollbackMetadata:
    """Decode rollback metadata. `deleted` contains all partitions of the rollback, `failed` those with undeleted files.

    Raises CorruptTableError unless it contains exactly one instant, like every rollback of Hudi.
    """
    return rollback_metadata_of(read_record(data, ROLLBACK_METADATA), base_path=base_path)


def rollback_metadata_of(record: Mapping[str, Any], *, base_path: str) -> RollbackMetadata:
    """Return rollback metadata from its Avro record; raises the same errors as `decode_rollback_metadata`."""
    if len(record["commitsRollback"]) != 1:
        raise CorruptTableError(f"a rollback names one instant, not {record['commitsRollback']}")
    target = record["commitsRollback"][0]
    actions = {info["commitTime"]: info["action"] for info in record["instantsRollback"]}
    deleted, failed = {}, {}
    for partition, part in record["partitionMetadata"].items():
        deleted[partition] = relative_paths(base_path, partition, part["successDeleteFiles"], what="rollback")
        if part["failedDeleteFiles"]:
            failed[partition] = relative_paths(base_path, partition, part["failedDeleteFiles"], what="rollback")
    return RollbackMetadata(
        start_time=record["startRollbackTime"],
        seconds=record["timeTakenInMillis"] / 1000,
        target=target,
        action=actions.get(target, ""),
        deleted=deleted,
        failed=failed,
    )


def decode_rollback_target(data: bytes) -> tuple[str, str]:
    """Return the requested time and the action that a rollback plan undoes; its files are not decoded.

    Plans of version 6 name log files in several forms, which do not matter for the target.
    """
    instant = read_record(data, ROLLBACK_PLAN)["instantToRollback"]
    if instant is None:
        raise CorruptTableError("the rollback plan has no instant to roll back")
    return instant["commitTime"], instant["action"]


def decode_undone_instants(data: bytes) -> dict[str, str]:
    """Return the actions of the instants that a completed rollback undid, by requested time.

    Its files are not decoded.
    """
    record = read_record(data, ROLLBACK_METADATA)
    actions = {info["commitTime"]: info["action"] for info in record["instantsRollback"]}
    return {requested: actions.get(requested, "") for requested in record["commitsRollback"]}
