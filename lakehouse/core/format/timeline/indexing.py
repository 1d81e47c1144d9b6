"""Index plans and index commit metadata: the content of `.indexing` instants (TL-4.9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.timeline.schemas import INDEX_METADATA, INDEX_PLAN
from lakehouse.errors import CorruptTableError
from lakehouse.model.indexing import IndexedPartition, IndexMetadata, IndexPlan

_VERSION = 1


def encode_index_plan(plan: IndexPlan) -> bytes:
    """Return the content of `indexing.requested`."""
    return write_record(INDEX_PLAN, {"version": _VERSION, "indexPartitionInfos": _records(plan.partitions)})


def decode_index_plan(data: bytes) -> IndexPlan:
    """Decode the content of `indexing.requested`; raise CorruptTableError for a partition without name."""
    return IndexPlan(partitions=_partitions(read_record(data, INDEX_PLAN)))


def encode_index_metadata(metadata: IndexMetadata) -> bytes:
    """Return the content of a completed indexing."""
    record = {
        "version": _VERSION,
        "operationType": metadata.operation,
        "indexPartitionInfos": _records(metadata.partitions),
    }
    return write_record(INDEX_METADATA, record)


def decode_index_metadata(data: bytes) -> IndexMetadata:
    """Decode the content of a completed indexing; raise CorruptTableError for a partition without name."""
    record = read_record(data, INDEX_METADATA)
    return IndexMetadata(partitions=_partitions(record), operation=record["operationType"])


def _records(partitions: Iterable[IndexedPartition]) -> list[dict[str, Any]]:
    return [
        {
            "version": _VERSION,
            "metadataPartitionPath": info.partition,
            "indexUptoInstant": info.up_to,
            "extraMetadata": dict(info.extra),
        }
        for info in partitions
    ]


def _partitions(record: Mapping[str, Any]) -> tuple[IndexedPartition, ...]:
    return tuple(_partition(info) for info in record["indexPartitionInfos"] or ())


def _partition(info: Mapping[str, Any]) -> IndexedPartition:
    name = info["metadataPartitionPath"]
    if not name:
        raise CorruptTableError("an index partition of the plan has no name (metadataPartitionPath)")
    return IndexedPartition(partition=name, up_to=info["indexUptoInstant"] or "", extra=info["extraMetadata"] or {})
