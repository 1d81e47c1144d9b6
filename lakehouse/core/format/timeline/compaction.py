"""Compaction and log compaction plans as Avro (TL-4.5).

Plans of version 2 contain file names without folders, plans of version 1 full paths. The decoder accepts both without
looking at the version, because it keeps only the last segment.
"""

from __future__ import annotations

from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.schemas import COMPACTION_PLAN
from lakehouse.errors import CorruptTableError
from lakehouse.model.compaction import CompactionOperation, CompactionPlan

_BARE_NAMES = 2
#: The strategy of a log compaction plan. Without it Hudi would execute the plan as a compaction.
_LOG_COMPACTION = {
    "compactorClassName": "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper",
    "strategyParams": {},
    "version": 1,
}


def encode_compaction_plan(plan: CompactionPlan, *, log_compaction: bool = False) -> bytes:
    """Return the content of `compaction.requested`, or of `logcompaction.requested` if `log_compaction` is set."""
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
    """Return the plan in a requested file of a compaction or log compaction; full paths are reduced to file names.

    Raises CorruptTableError if the bytes are not a plan or an operation names no file slice.
    """
    record = read_record(data, COMPACTION_PLAN)
    return CompactionPlan(
        operations=tuple(_operation(operation) for operation in record["operations"] or ()),
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
        "bootstrapFilePath": operation.source or None,
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
        source=record["bootstrapFilePath"] or "",
    )


def _bare(path: str) -> str:
    return path.rpartition("/")[2]
