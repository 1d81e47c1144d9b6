"""Commit and replace metadata: Avro of table versions 8 and 9, JSON of version 6 (TL-4.1 to TL-4.4).

Unused counters are 0 and `extraMetadata` is a map, because some of Hudi's getters do not check for null. The decoder
reads commits and replacecommits as one type; `CommitMetadata.replaced` is empty for a commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from lakehouse.core.format.avro.object_file import MAGIC, read_record, write_record
from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.timeline.paths import require_inside
from lakehouse.core.format.timeline.schemas import COMMIT_METADATA, REPLACE_COMMIT_METADATA, REQUESTED_REPLACE_METADATA
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.document import parse_json

_Value = TypeVar("_Value")
_COMMIT = "commit metadata"

#: The schemas of commits without write statistics.
_WITHOUT_STATS = tuple(
    {**schema, "fields": [field for field in schema["fields"] if field["name"] != "partitionToWriteStats"]}
    for schema in (COMMIT_METADATA, REPLACE_COMMIT_METADATA)
)
#: The value that Hudi writes as the previous commit of a new file group.
_NO_PREVIOUS = "null"
#: Counters that this package does not fill: they are 0, never null.
_ZEROES = ("totalWriteErrors", "totalRollbackBlocks", "totalLogReadTimeMs")


def encode_avro_commit(metadata: CommitMetadata, *, replace: bool = False) -> bytes:
    """Return the content of a completed commit, or of a completed replacecommit if `replace` is set, in Avro.

    An inflight write has the same content: the write stats of its workload profile have no path. Each partition with
    inserts has one stat with an empty file id (`num_inserts`); each file group with updates has one with its file id
    (`prev_commit`, `num_updates`). It is HoodieCommitMetadata also for a replacecommit.

    Raises CorruptTableError if `metadata` names replaced file groups but `replace` is not set, because the file would
    not contain them.
    """
    record = _record(metadata, {"numUpdates": 0}, replace)
    return write_record(REPLACE_COMMIT_METADATA if replace else COMMIT_METADATA, {**record, "version": None})


def encode_json_commit(metadata: CommitMetadata, *, replace: bool = False) -> bytes:
    """Return the same as `encode_avro_commit` in the JSON of version 6; raises the same errors."""
    return json.dumps(_record(metadata, {}, replace), indent=2).encode()


def _record(metadata: CommitMetadata, newer: dict[str, int], replace: bool) -> dict[str, Any]:
    """Return the record of a commit. `newer` contains the counters that older releases do not write."""
    if metadata.replaced and not replace:
        raise CorruptTableError(f"only a replacecommit can replace file groups, got {dict(metadata.replaced)}")
    stats: dict[str, list[dict[str, Any]]] = {}
    for stat in metadata.stats:
        stats.setdefault(stat.partition, []).append(_stat_to_record(stat) | newer)
    record: dict[str, Any] = {
        "partitionToWriteStats": stats,
        "compacted": metadata.compacted,
        "extraMetadata": _sorted(metadata.extra),
        "operationType": metadata.operation.upper(),
    }
    if replace:
        record["partitionToReplaceFileIds"] = {key: list(ids) for key, ids in _sorted(metadata.replaced).items()}
    return record


def decode_commit(data: bytes) -> CommitMetadata:
    """Return the metadata in a completed or inflight file of a commit, deltacommit or replacecommit.

    Reads Avro and the JSON of version 6. Unknown operations are kept as strings. Raises CorruptTableError for content
    that cannot be parsed and for an empty file. An empty file is valid for some pending instants; the caller checks
    that.
    """
    record = read_record(data, COMMIT_METADATA, REPLACE_COMMIT_METADATA) if data[:4] == MAGIC else _read_json(data)
    return _metadata(record)


def decode_summary(data: bytes) -> CommitMetadata:
    """Return the metadata of a commit without its write statistics, which are skipped, so many files cost little.

    Raises CorruptTableError as `decode_commit` does.
    """
    record = read_record(data, *_WITHOUT_STATS) if data[:4] == MAGIC else _read_json(data)
    return _metadata({**record, "partitionToWriteStats": None})


def _metadata(record: Mapping[str, Any]) -> CommitMetadata:
    try:
        stats = tuple(
            _stat_from_record(partition, stat)
            for partition, of_partition in (record.get("partitionToWriteStats") or {}).items()
            for stat in of_partition or ()
        )
        replaced = record.get("partitionToReplaceFileIds") or {}
        return CommitMetadata(
            operation=record.get("operationType") or str(Operation.UNKNOWN),
            stats=stats,
            replaced={partition: tuple(ids) for partition, ids in replaced.items()},
            extra={key: value for key, value in (record.get("extraMetadata") or {}).items() if value is not None},
            compacted=bool(record.get("compacted")),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptTableError(f"commit metadata has an unexpected shape: {error}") from error


def encode_requested_replace() -> bytes:
    """Return the content of `replacecommit.requested` for a write other than clustering: a record of nulls."""
    fields = ("operationType", "clusteringPlan", "extraMetadata", "version")
    return write_record(REQUESTED_REPLACE_METADATA, dict.fromkeys(fields))


def decode_requested_replace(data: bytes) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of the file groups that a clustering plan rewrites, by partition; empty for other writes."""
    if not data:
        return {}
    plan = read_record(data, REQUESTED_REPLACE_METADATA).get("clusteringPlan") or {}
    groups: dict[str, list[str]] = {}
    for group in plan.get("inputGroups") or ():
        for file_slice in group.get("slices") or ():
            groups.setdefault(file_slice["partitionPath"] or "", []).append(file_slice["fileId"])
    return {partition: tuple(ids) for partition, ids in groups.items()}


def _stat_to_record(stat: WriteStat) -> dict[str, Any]:
    millis = round(stat.seconds * 1000)
    is_new = stat.prev_commit is None
    runtime = {
        "totalScanTime": 0,
        "totalCreateTime": millis if is_new else 0,
        "totalUpsertTime": 0 if is_new else millis,
    }
    record: dict[str, Any] = {
        "fileId": stat.file_id,
        # A stat in a workload profile describes a file that does not exist yet. Hudi writes neither its path nor its
        # partition.
        "path": stat.path or None,
        "partitionPath": stat.partition if stat.path else None,
        "prevCommit": _NO_PREVIOUS if stat.prev_commit is None else stat.prev_commit,
        "prevBaseFile": stat.prev_base_file,
        "numWrites": stat.num_writes,
        "numInserts": stat.num_inserts,
        "numUpdateWrites": stat.num_updates,
        "numDeletes": stat.num_deletes,
        "totalWriteBytes": stat.size_bytes,
        "fileSizeInBytes": stat.size_bytes,
        "totalLogRecords": stat.log_records,
        "totalLogBlocks": stat.log_blocks,
        "totalLogFilesCompacted": stat.log_files_compacted,
        "totalLogSizeCompacted": stat.log_bytes_compacted,
        "totalUpdatedRecordsCompacted": stat.updated_compacted,
        "totalCorruptLogBlock": stat.corrupt_blocks,
        "cdcStats": _sorted(stat.cdc_files) or None,
        "runtimeStats": runtime if stat.path else None,
    }
    if stat.event_time is not None:
        record["minEventTime"], record["maxEventTime"] = stat.event_time
    version, names = _log_of(stat.path)
    if version:
        record["logVersion"] = stat.log_version or version
        record |= {"logOffset": 0, "baseFile": stat.base_file, "logFiles": list(stat.log_files or names)}
    return record | dict.fromkeys(_ZEROES, 0)


def _stat_from_record(partition: str, record: Mapping[str, Any]) -> WriteStat:
    previous = record.get("prevCommit")
    runtime = record.get("runtimeStats") or {}
    millis = sum(runtime.get(name) or 0 for name in ("totalScanTime", "totalCreateTime", "totalUpsertTime"))
    path = require_inside(record.get("path") or "", what=_COMMIT)
    # Log version and log files are omitted if they can be derived from the path, so that a round trip gives equal
    # stats.
    version, names = _log_of(path)
    log_version, log_files = _count(record, "logVersion"), tuple(record.get("logFiles") or ())
    least, greatest = record.get("minEventTime"), record.get("maxEventTime")
    return WriteStat(
        partition=require_inside(partition, what=_COMMIT),
        file_id=record.get("fileId") or "",
        path=path,
        prev_commit=None if previous in (None, "", _NO_PREVIOUS) else previous,
        prev_base_file=record.get("prevBaseFile") or None,
        num_writes=_count(record, "numWrites"),
        num_inserts=_count(record, "numInserts"),
        num_updates=_count(record, "numUpdateWrites"),
        num_deletes=_count(record, "numDeletes"),
        size_bytes=_count(record, "fileSizeInBytes") or _count(record, "totalWriteBytes"),
        seconds=millis / 1000,
        log_records=_count(record, "totalLogRecords"),
        log_blocks=_count(record, "totalLogBlocks"),
        log_files_compacted=_count(record, "totalLogFilesCompacted"),
        log_bytes_compacted=_count(record, "totalLogSizeCompacted"),
        updated_compacted=_count(record, "totalUpdatedRecordsCompacted"),
        corrupt_blocks=_count(record, "totalCorruptLogBlock"),
        cdc_files={
            require_inside(name, what=_COMMIT): int(size) for name, size in (record.get("cdcStats") or {}).items()
        },
        log_version=0 if log_version == version else log_version,
        base_file=record.get("baseFile") or "",
        log_files=() if log_files == names else log_files,
        event_time=None if least is None or greatest is None else (int(least), int(greatest)),
    )


def _log_of(path: str) -> tuple[int, tuple[str, ...]]:
    """Return the version of the log file at `path` and a tuple of its name; 0 and () for another file."""
    name = path.rpartition("/")[2]
    log = parse_log_file(name, "", 0)
    return (0, ()) if log is None else (log.version, (name,))


def _count(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    return 0 if value is None else int(value)


def _read_json(data: bytes) -> dict[str, Any]:
    if not data:
        raise CorruptTableError("commit metadata is an empty file; expected Avro or JSON")
    try:
        record = parse_json(data)
    except ValueError as error:
        raise CorruptTableError(f"commit metadata is neither Avro nor JSON; it starts with {data[:16]!r}") from error
    if not isinstance(record, dict):
        raise CorruptTableError(f"commit metadata is JSON but not an object: {data[:16]!r}")
    return record


def _sorted(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the mapping sorted by key, so that equal metadata is encoded as equal bytes."""
    return dict(sorted(values.items()))
