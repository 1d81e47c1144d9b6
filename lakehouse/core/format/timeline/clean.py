"""Cleaner plan and clean metadata (TL-4.6, TL-9.3).

A plan's file contains absolute paths of data files; its value has paths relative to the table's base path (see
`paths.py`). Clean metadata contains file names without folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.paths import absolute_paths, relative_paths
from lakehouse.core.format.timeline.schemas import CLEAN_METADATA, CLEANER_PLAN
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.clean import CleanedPartition, CleanMetadata, CleanPlan
from lakehouse.model.instant import Action, Instant, State

# The format version of plans and metadata. In version 1 plans have file names and metadata has paths, the other way
# round.
_VERSION = 2


def encode_clean_plan(plan: CleanPlan, *, base_path: str) -> bytes:
    """Return the content of `clean.requested`, with absolute file paths below `base_path`."""
    earliest = plan.earliest
    retained = earliest and {
        "timestamp": earliest.requested,
        "action": str(earliest.action),
        "state": earliest.state.name,
    }
    files = {
        partition: [{"filePath": path, "isBootstrapBaseFile": False} for path in absolute_paths(base_path, paths)]
        for partition, paths in plan.files.items()
    }
    record = {
        "earliestInstantToRetain": retained,
        "lastCompletedCommitTimestamp": plan.last_completed,
        "policy": plan.policy,
        "filesToBeDeletedPerPartition": {},
        "version": _VERSION,
        "filePathsToBeDeletedPerPartition": files,
        "partitionsToBeDeleted": list(plan.partitions_to_delete),
        "extraMetadata": dict(plan.extra),
    }
    return write_record(CLEANER_PLAN, record)


def decode_clean_plan(data: bytes, *, base_path: str) -> CleanPlan:
    """Return the plan in a `clean.requested` file of version 1 or 2.

    Raises CorruptTableError for a path outside its partition and UnsupportedError for files of a bootstrapped table.
    """
    record = read_record(data, CLEANER_PLAN)
    files: dict[str, tuple[str, ...]] = {}
    for partition, names in (record["filesToBeDeletedPerPartition"] or {}).items():
        folder = f"{partition}/" if partition else ""
        files[partition] = tuple(f"{folder}{name.rpartition('/')[2]}" for name in names)
    for partition, infos in (record["filePathsToBeDeletedPerPartition"] or {}).items():
        source = next((info["filePath"] for info in infos if info["isBootstrapBaseFile"]), None)
        if source is not None:
            raise UnsupportedError(
                f"the plan removes {source!r}, a source file of a bootstrapped table, which is not supported;"
                " execute the plan with Hudi"
            )
        paths = [info["filePath"] or "" for info in infos]
        files[partition] = relative_paths(base_path, partition, paths, what="clean")
    return CleanPlan(
        policy=record["policy"],
        earliest=_instant(record["earliestInstantToRetain"]),
        last_completed=record["lastCompletedCommitTimestamp"],
        files=files,
        partitions_to_delete=tuple(record["partitionsToBeDeleted"] or ()),
        extra=record["extraMetadata"] or {},
    )


def encode_clean_metadata(metadata: CleanMetadata) -> bytes:
    """Return the content of a clean's completed file."""
    partitions = {
        partition: {
            "partitionPath": partition,
            "policy": cleaned.policy,
            "deletePathPatterns": [*cleaned.deleted, *cleaned.failed],
            "successDeleteFiles": list(cleaned.deleted),
            "failedDeleteFiles": list(cleaned.failed),
            "isPartitionDeleted": cleaned.is_deleted,
        }
        for partition, cleaned in metadata.partitions.items()
    }
    record = {
        "startCleanTime": metadata.start_time,
        "timeTakenInMillis": round(metadata.seconds * 1000),
        "totalFilesDeleted": sum(len(cleaned.deleted) for cleaned in metadata.partitions.values()),
        "earliestCommitToRetain": metadata.earliest,
        "lastCompletedCommitTimestamp": metadata.last_completed,
        "partitionMetadata": partitions,
        "version": _VERSION,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": dict(metadata.extra),
    }
    return write_record(CLEAN_METADATA, record)


def decode_clean_metadata(data: bytes) -> CleanMetadata:
    """Return the metadata in the completed file of a clean, of version 1 or 2."""
    record = read_record(data, CLEAN_METADATA)
    return CleanMetadata(
        start_time=record["startCleanTime"],
        seconds=record["timeTakenInMillis"] / 1000,
        earliest=record["earliestCommitToRetain"],
        last_completed=record["lastCompletedCommitTimestamp"],
        partitions={partition: _cleaned(part) for partition, part in record["partitionMetadata"].items()},
        extra=record["extraMetadata"] or {},
    )


def _cleaned(part: Mapping[str, Any]) -> CleanedPartition:
    return CleanedPartition(
        policy=part["policy"],
        deleted=tuple(name.rpartition("/")[2] for name in part["successDeleteFiles"]),
        failed=tuple(name.rpartition("/")[2] for name in part["failedDeleteFiles"]),
        is_deleted=bool(part["isPartitionDeleted"]),
    )


def _instant(retained: Mapping[str, str] | None) -> Instant | None:
    if retained is None:
        return None
    try:
        return Instant(
            requested=retained["timestamp"], action=Action(retained["action"]), state=State[retained["state"]]
        )
    except (ValueError, KeyError) as error:
        raise CorruptTableError(f"the plan's earliest instant to retain is invalid: {dict(retained)}") from error
