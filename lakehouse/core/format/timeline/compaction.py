"""Plans of compactions and log compactions as Avro (TL-4.5).

Version 2 holds bare file names, version 1 full paths; which is which shows in the names themselves.
"""

from __future__ import annotations

from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.schemas import COMPACTION_PLAN
from lakehouse.errors import CorruptTableError
from lakehouse.model.compaction import CompactionOperation, CompactionPlan

_BARE_NAMES = 2
#: What Hudi runs a log compaction with; without it, it would run the plan as a compaction.
_LOG_COMPACTION = {
    "compactorClassName": "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper",
    "strategyParams": {},
    "version": 1,
}


def encode_compaction_plan(plan: CompactionPlan, *, log_compaction: bool = False) -> bytes:
    """Return the content of `compaction.requested`, or of `logcompaction.requested` if `log_compaction`."""
    return write_record(
        COMPACTION_PLAN,
        {
            "operations": [_operation_record(operation) for operation in plan.operations],
            "extraMetadata": dict(sorted(plan.extra.items())),
            "version": _BARE_NAMES,
            "strategy": _LOG_COMPACTION if log_compaction else None,
            "preserveHoodieMetadata": log_compaction,
            "missingSchedulePartitions": list(plan.missing_partitions),
        },
    )


def decode_compaction_plan(data: bytes) -> CompactionPlan:
    """Return the plan that such a file holds; full paths of version 1 are reduced to names.

    Raises CorruptTableError if the bytes hold no plan, or one with an operation on no file group.
    """
    record = read_record(data, COMPACTION_PLAN)
    return CompactionPlan(
        operations=tuple(_operation(found) for found in record["operations"] or ()),
        extra=dict(record["extraMetadata"] or {}),
        missing_partitions=tuple(record["missingSchedulePartitions"] or ()),
    )


def _operation_record(operation: CompactionOperation) -> dict[str, Any]:
    return {
        "baseInstantTime": operation.base_instant,
        "deltaFilePaths": list(operation.log_files),
        "dataFilePath": operation.data_file,
        "fileId": operation.file_id,
        "partitionPath": operation.partition,
        "metrics": dict(sorted(operation.metrics.items())),
        "bootstrapFilePath": None,
    }


def _operation(record: dict[str, Any]) -> CompactionOperation:
    if not record["fileId"] or not record["baseInstantTime"]:
        raise CorruptTableError(f"an operation of the compaction plan names no file slice: {record}")
    data_file = record["dataFilePath"]
    return CompactionOperation(
        partition=record["partitionPath"] or "",
        file_id=record["fileId"],
        base_instant=record["baseInstantTime"],
        data_file=_bare(data_file) if data_file else None,
        log_files=tuple(_bare(name) for name in record["deltaFilePaths"] or ()),
        metrics=dict(record["metrics"] or {}),
    )


def _bare(path: str) -> str:
    return path.rpartition("/")[2]
