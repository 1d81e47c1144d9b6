"""Write checkpoints of a Delta log, and remove expired entries.

A checkpoint contains no removed files: the vacuum of other programs must not delete files that the table may need, and
the retention of removed files in the view is a hundred years (see `delta_view`).
"""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.env import Env
from lakehouse.platform.export.delta.log import (
    ADD,
    LAST_CHECKPOINT,
    DeltaLog,
    checkpoint_path,
    entry_path,
    live_files,
)

#: Number of versions after which a checkpoint is written.
INTERVAL = 10
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        (
            "format",
            pa.struct([("provider", pa.string()), ("options", pa.map_(pa.string(), pa.string()))]),
        ),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("createdTime", pa.int64()),
        ("configuration", pa.map_(pa.string(), pa.string())),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_REMOVE = pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())])
_SCHEMA = pa.schema(
    [
        ("txn", _TXN),
        ("add", pa.struct(list(ADD))),
        ("remove", _REMOVE),
        ("metaData", _METADATA),
        ("protocol", _PROTOCOL),
    ]
)


def is_checkpoint_due(log: DeltaLog) -> bool:
    """Return whether the newest version needs a checkpoint."""
    return log.version - (-1 if log.checkpoint is None else log.checkpoint) >= INTERVAL


def write_checkpoint(env: Env, log: DeltaLog, transaction: dict[str, Any] | None) -> None:
    """Write a checkpoint of the newest version, then the hint to it. Equal contents may be written twice."""
    adds = live_files(env.storage, log)
    settings = [
        {"txn": transaction} if transaction else {},
        {"metaData": _as_arrow(log.settings["metaData"])},
        {"protocol": log.settings["protocol"]},
    ]
    head = pa.Table.from_pylist([entry for entry in settings if entry], schema=_SCHEMA)
    structs = pa.StructArray.from_arrays(
        [column.combine_chunks() if adds.num_rows else pa.array([], column.type) for column in adds.columns],
        fields=list(ADD),
    )
    columns = [structs if name == "add" else pa.nulls(len(structs), _SCHEMA.field(name).type) for name in _SCHEMA.names]
    table = pa.concat_tables([head, pa.table(columns, schema=_SCHEMA)])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="snappy")
    env.storage.put(checkpoint_path(log.version), sink.getvalue())
    hint = {"version": log.version, "size": table.num_rows, "sizeInBytes": sink.tell(), "numOfAddFiles": adds.num_rows}
    env.storage.put(LAST_CHECKPOINT, json.dumps(hint).encode())


def remove_expired(env: Env, log: DeltaLog, retained: int) -> int:
    """Delete the entries and checkpoints that no retained version needs; return their number.

    The oldest are deleted first, so the entries that stay are consecutive after a crash.
    """
    needed = [number for number in log.checkpoints if number <= log.version - retained]
    if not needed:
        return 0
    first = needed[-1]
    gone = [(number, entry_path(number)) for number in log.versions if number < first]
    gone += [(number, checkpoint_path(number)) for number in log.checkpoints if number < first]
    for _, path in sorted(gone):
        env.storage.delete(path)
    return len(gone)


def _as_arrow(metadata: dict[str, Any]) -> dict[str, Any]:
    form = metadata.get("format") or {}
    return {
        **metadata,
        "format": {"provider": form.get("provider", "parquet"), "options": list((form.get("options") or {}).items())},
        "configuration": list((metadata.get("configuration") or {}).items()),
    }
