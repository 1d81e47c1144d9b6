"""The bootstrap index: which source file contains the data columns of a skeleton file.

A table that Hudi bootstrapped from Parquet files, by metadata only, has skeleton base files. They contain the meta
columns of the rows; the source files keep the data columns, in the same order of rows. Two HFiles map the ones to the
others:

    .hoodie/.aux/.bootstrap/.partitions    part=<partition>                   -> its source folder and all of its files
    .hoodie/.aux/.bootstrap/.fileids       part=<partition>;fileid=<file id>  -> the source file

Each value is an Avro container file with one record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import METADATA_BOOTSTRAP

#: The table property with the folder of the source files, and the properties of the index in the table versions with
#: and without completion times.
SOURCE_PROPERTY = "hoodie.bootstrap.base.path"
INDEX_TYPE = ("hoodie.bootstrap.index.type", "HFILE")
INDEX_CLASS = ("hoodie.bootstrap.index.class", "org.apache.hudi.common.bootstrap.index.hfile.HFileBootstrapIndex")
_FOLDER = ".hoodie/.aux/.bootstrap"
_NAME = f"00000000-0000-0000-0000-000000000000-0_1-0-1_{METADATA_BOOTSTRAP}.hfile"
#: The paths of the two HFiles in the table.
PARTITION_INDEX, FILE_INDEX = f"{_FOLDER}/.partitions/{_NAME}", f"{_FOLDER}/.fileids/{_NAME}"
#: The entry of the file info that describes the index.
INDEX_INFO = "INDEX_INFO"

_NAMESPACE = "org.apache.hudi.avro.model"
_STRING = {"type": "string", "avro.java.string": "String"}
_VERSION = {"name": "version", "type": ["int", "null"], "default": 1}


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_VERSION, *fields]}


def _top(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": [_VERSION, *fields]}


_PERMISSION = {
    "type": "record",
    "name": "HoodieFSPermission",
    "fields": [
        _VERSION,
        *(_optional(name, _STRING) for name in ("userAction", "groupAction", "otherAction")),
        _optional("stickyBit", "boolean"),
    ],
}
_STATUS = _record(
    "HoodieFileStatus",
    _optional("path", _record("HoodiePath", _optional("uri", _STRING))),
    _optional("length", "long"),
    _optional("isDir", "boolean"),
    _optional("blockReplication", "int"),
    *(_optional(name, "long") for name in ("blockSize", "modificationTime", "accessTime")),
    _optional("permission", _PERMISSION),
    _optional("owner", _STRING),
    _optional("group", _STRING),
    _optional("symlink", "HoodiePath"),
)
FILE_PARTITION_INFO = _top(
    "HoodieBootstrapFilePartitionInfo",
    _optional("bootstrapPartitionPath", _STRING),
    _optional("bootstrapFileStatus", _STATUS),
    _optional("partitionPath", _STRING),
)
PARTITION_METADATA = _top(
    "HoodieBootstrapPartitionMetadata",
    _optional("bootstrapPartitionPath", _STRING),
    _optional("partitionPath", _STRING),
    _optional("fileIdToBootstrapFile", {"type": "map", "values": _STATUS, "avro.java.string": "String"}),
)
INDEX_SUMMARY = _top(
    "HoodieBootstrapIndexInfo",
    _optional("bootstrapBasePath", _STRING),
    _optional("createdTimestamp", "long"),
    _optional("numKeys", "int"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A source file: its URI, its size, its time of change in milliseconds since 1970, and its folder in the source."""

    uri: str
    size_bytes: int
    modified_ms: int
    folder: str


def file_key(partition: str, file_id: str) -> bytes:
    """Return the key of a skeleton file in the index by file id."""
    return f"part={partition};fileid={file_id}".encode()


def partition_key(partition: str) -> bytes:
    """Return the key of a partition in the index by partition."""
    return f"part={partition}".encode()


def decode_source(value: bytes) -> SourceFile:
    """Return the source file in an entry of the index by file id. Raises CorruptTableError for another value."""
    record = read_record(value, FILE_PARTITION_INFO)
    status = record["bootstrapFileStatus"] or {}
    uri = (status.get("path") or {}).get("uri")
    if not uri:
        raise CorruptTableError(f"an entry of the bootstrap index names no source file: {record}")
    return SourceFile(
        uri=uri,
        size_bytes=status["length"] or 0,
        modified_ms=status["modificationTime"] or 0,
        folder=record["bootstrapPartitionPath"] or "",
    )


def encode_source(partition: str, source: SourceFile) -> bytes:
    """Return the entry of the index by file id for a skeleton file in `partition`."""
    record = {
        "version": 1,
        "bootstrapPartitionPath": source.folder,
        "bootstrapFileStatus": _status(source),
        "partitionPath": partition,
    }
    return write_record(FILE_PARTITION_INFO, record)


def encode_partition(partition: str, folder: str, sources: Mapping[str, SourceFile]) -> bytes:
    """Return the entry of the index by partition: its source folder, and its source files by file id."""
    record = {
        "version": 1,
        "bootstrapPartitionPath": folder,
        "partitionPath": partition,
        "fileIdToBootstrapFile": {file_id: _status(sources[file_id]) for file_id in sorted(sources)},
    }
    return write_record(PARTITION_METADATA, record)


def encode_summary(source: str, created_ms: int, keys: Sequence[bytes]) -> bytes:
    """Return the description of an index, which is in the file info of its HFile."""
    record = {"version": 1, "bootstrapBasePath": source, "createdTimestamp": created_ms, "numKeys": len(keys)}
    return write_record(INDEX_SUMMARY, record)


def _status(source: SourceFile) -> dict[str, Any]:
    return {
        "version": 1,
        "path": {"version": 1, "uri": source.uri},
        "length": source.size_bytes,
        "isDir": False,
        "blockReplication": 1,
        "blockSize": 1 << 25,
        "modificationTime": source.modified_ms,
        "accessTime": source.modified_ms,
        "permission": None,
        "owner": None,
        "group": None,
        "symlink": None,
    }
