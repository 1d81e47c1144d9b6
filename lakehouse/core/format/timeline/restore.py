"""Savepoint metadata, restore plan and restore metadata (TL-4.8, TL-7.5)."""

from __future__ import annotations

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.rollback import rollback_metadata_of, rollback_record
from lakehouse.core.format.timeline.schemas import RESTORE_METADATA, RESTORE_PLAN, SAVEPOINT_METADATA
from lakehouse.model.restore import RestoreMetadata, RestorePlan, SavepointMetadata

_PLAN_VERSION = 2


def encode_savepoint(metadata: SavepointMetadata) -> bytes:
    """Return the content of a completed savepoint."""
    partitions = {
        partition: {"partitionPath": partition, "savepointDataFile": list(names)}
        for partition, names in sorted(metadata.files.items())
    }
    record = {
        "savepointedBy": metadata.user,
        "savepointedAt": metadata.at_ms,
        "comments": metadata.comment,
        "partitionMetadata": partitions,
        "version": 1,
    }
    return write_record(SAVEPOINT_METADATA, record)


def decode_savepoint(data: bytes) -> SavepointMetadata:
    """Decode the content of a completed savepoint."""
    record = read_record(data, SAVEPOINT_METADATA)
    return SavepointMetadata(
        user=record["savepointedBy"],
        at_ms=record["savepointedAt"],
        comment=record["comments"],
        files={name: tuple(part["savepointDataFile"]) for name, part in record["partitionMetadata"].items()},
    )


def encode_restore_plan(plan: RestorePlan) -> bytes:
    """Return the content of `restore.requested`."""
    record = {
        "instantsToRollback": _infos(plan.instants),
        "version": _PLAN_VERSION,
        "savepointToRestoreTimestamp": plan.target,
    }
    return write_record(RESTORE_PLAN, record)


def decode_restore_plan(data: bytes) -> RestorePlan:
    """Decode a restore plan; a plan of version 1 does not contain the target of the restore."""
    record = read_record(data, RESTORE_PLAN)
    instants = tuple((info["commitTime"], info["action"]) for info in record["instantsToRollback"])
    return RestorePlan(target=record["savepointToRestoreTimestamp"], instants=instants)


def encode_restore_metadata(metadata: RestoreMetadata, *, base_path: str) -> bytes:
    """Return the content of a completed restore, with the files as paths below `base_path`."""
    rollbacks = {
        requested: [rollback_record(rollback, base_path=base_path) for rollback in done]
        for requested, done in metadata.rollbacks.items()
    }
    record = {
        "startRestoreTime": metadata.start_time,
        "timeTakenInMillis": round(metadata.seconds * 1000),
        "instantsToRollback": [requested for requested, _ in metadata.instants],
        "hoodieRestoreMetadata": rollbacks,
        "version": 1,
        "restoreInstantInfo": _infos(metadata.instants),
    }
    return write_record(RESTORE_METADATA, record)


def decode_restore_metadata(data: bytes, *, base_path: str) -> RestoreMetadata:
    """Decode the content of a completed restore."""
    record = read_record(data, RESTORE_METADATA)
    actions = {info["commitTime"]: info["action"] for info in record["restoreInstantInfo"]}
    return RestoreMetadata(
        start_time=record["startRestoreTime"],
        seconds=record["timeTakenInMillis"] / 1000,
        instants=tuple((requested, actions.get(requested, "")) for requested in record["instantsToRollback"]),
        rollbacks={
            requested: tuple(rollback_metadata_of(entry, base_path=base_path) for entry in done if entry is not None)
            for requested, done in record["hoodieRestoreMetadata"].items()
        },
    )


def _infos(instants: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"commitTime": requested, "action": action} for requested, action in instants]
