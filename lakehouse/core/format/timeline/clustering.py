"""Clustering plans as Avro (TL-4.4).

The file contains absolute paths, local ones with the scheme `file:`. The value has file names without folders, because
the table may have been moved since the plan was created.
"""

from __future__ import annotations

from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.schemas import REQUESTED_REPLACE_METADATA
from lakehouse.errors import CorruptTableError
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import Operation

#: Hudi's strategy for plans of this package: sort rows by the plan's columns and write files of a target size.
SORT_AND_SIZE = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"

#: Hudi's strategy for resizes of consistent hashing.
RESIZE_RING = "org.apache.hudi.client.clustering.run.strategy.SparkConsistentBucketClusteringExecutionStrategy"

#: The strategy of this package for resizes of the bucket index. Hudi has none and does not execute such plans.
RESIZE_BUCKETS = "lakehouse.clustering.ResizeBuckets"


def encode_clustering_plan(plan: ClusteringPlan, *, base_path: str) -> bytes:
    """Return the content of `clustering.requested`, with absolute file paths below `base_path`."""
    base = _uri(base_path)
    record = {
        "inputGroups": [_group_record(group, base) for group in plan.groups],
        "strategy": {
            "strategyClassName": plan.strategy or SORT_AND_SIZE,
            "strategyParams": dict(sorted(plan.params.items())),
            "version": 1,
        },
        "extraMetadata": dict(sorted(plan.extra.items())),
        "version": 1,
        "preserveHoodieMetadata": True,
        "missingSchedulePartitions": list(plan.missing_partitions),
    }
    return write_record(
        REQUESTED_REPLACE_METADATA,
        {"operationType": str(Operation.CLUSTER), "clusteringPlan": record, "extraMetadata": {}, "version": 1},
    )


def decode_clustering_plan(data: bytes) -> ClusteringPlan | None:
    """Return the plan in a requested file, or None if the file belongs to another replacing write.

    Raises CorruptTableError if the bytes are not a requested file, or if a group names no file slice or several
    partitions.
    """
    if not data:
        return None
    record = read_record(data, REQUESTED_REPLACE_METADATA)["clusteringPlan"]
    if record is None:
        return None
    strategy = record["strategy"] or {}
    return ClusteringPlan(
        groups=tuple(_group(group) for group in record["inputGroups"] or () if group["slices"]),
        params=dict(strategy.get("strategyParams") or {}),
        strategy=strategy.get("strategyClassName") or "",
        extra=dict(record["extraMetadata"] or {}),
        missing_partitions=tuple(record["missingSchedulePartitions"] or ()),
    )


def _group_record(group: ClusteringGroup, base: str) -> dict[str, Any]:
    return {
        "slices": [_slice_record(file_slice, base) for file_slice in group.slices],
        "metrics": dict(sorted(group.metrics.items())),
        "numOutputFileGroups": group.outputs,
        "extraMetadata": dict(sorted(group.extra.items())) or None,
        "version": 1,
    }


def _slice_record(file_slice: ClusteredSlice, base: str) -> dict[str, Any]:
    folder = f"{base}/{file_slice.partition}" if file_slice.partition else base
    return {
        "dataFilePath": "" if file_slice.data_file is None else f"{folder}/{file_slice.data_file}",
        "deltaFilePaths": [f"{folder}/{name}" for name in file_slice.log_files],
        "fileId": file_slice.file_id,
        "partitionPath": file_slice.partition,
        "bootstrapFilePath": file_slice.source,
        "version": 1,
    }


def _group(record: dict[str, Any]) -> ClusteringGroup:
    slices = tuple(_slice(entry) for entry in record["slices"])
    if len({file_slice.partition for file_slice in slices}) > 1:
        raise CorruptTableError(f"a group of the clustering plan has slices of several partitions: {slices}")
    return ClusteringGroup(
        slices=slices,
        outputs=record["numOutputFileGroups"] or 1,
        metrics=dict(record["metrics"] or {}),
        extra=dict(record["extraMetadata"] or {}),
    )


def _slice(record: dict[str, Any]) -> ClusteredSlice:
    data_file, logs = record["dataFilePath"], record["deltaFilePaths"] or ()
    if not record["fileId"] or not (data_file or logs):
        raise CorruptTableError(f"the clustering plan names no file slice: {record}")
    return ClusteredSlice(
        partition=record["partitionPath"] or "",
        file_id=record["fileId"],
        data_file=_bare(data_file) if data_file else None,
        log_files=tuple(_bare(path) for path in logs),
        source=record["bootstrapFilePath"] or "",
    )


def _uri(base_path: str) -> str:
    base = base_path.rstrip("/")
    return f"file:{base}" if base.startswith("/") else base


def _bare(path: str) -> str:
    return path.rpartition("/")[2]
