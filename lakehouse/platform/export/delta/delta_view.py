"""The format `delta`: load a view from its log, and commit a change as one log entry.

    entry       create <version>.json if absent: the commit; a lost race returns False
    checkpoint  every 10 versions; a run that finds none due later writes it
    expiry      entries that no retained version needs

The entry contains the mark in `commitInfo` and the instant as the version of a `txn` action, which checkpoints keep.
A version without mark was written by another program: the next export compares the whole view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UnsupportedError
from lakehouse.platform.export.columns import ViewColumns
from lakehouse.platform.export.delta.checkpoint import is_checkpoint_due, remove_expired, write_checkpoint
from lakehouse.platform.export.delta.log import (
    DIRECTORY,
    DeltaLog,
    encode_actions,
    encode_path,
    entry_path,
    live_paths,
    read_log,
)
from lakehouse.platform.export.delta.types import (
    has_local_times,
    parse_schema,
    partition_values,
    schema_text,
    statistics_text,
)
from lakehouse.platform.export.mark import ExportMark
from lakehouse.platform.export.view import COMPLETION, ENGINE, INSTANT, MARK, MIXED, VIEW_OF, ViewChange, ViewState

_APP = "lakehouse.export"
#: Other programs may vacuum the view. Files that it no longer names still belong to the table, so none may expire.
_PROTECTION = {
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
    "delta.checkpointInterval": "10",
    "delta.enableExpiredLogCleanup": "false",
}
_LOCAL_TIMES, _FEATURES = "timestampNtz", ("readerFeatures", "writerFeatures")


class DeltaView:
    """See `ViewFormat`."""

    name = "delta"

    def columns(self, columns: ViewColumns, root: str) -> ViewColumns:
        """See `ViewFormat.columns`."""
        stored = parse_schema(schema_text(columns, root))
        assert stored is not None, "a view has no other types"
        return replace(columns, schema=stored)

    def load(self, env: Env) -> ViewState:
        """See `ViewFormat.load`."""
        log = read_log(env.storage)
        if log.version < 0:
            return ViewState(internal=log)
        metadata = log.settings.get("metaData") or {}
        properties = metadata.get("configuration") or {}
        if VIEW_OF not in properties:
            raise UnsupportedError(
                f"{env.storage.root}/{DIRECTORY} belongs to a Delta table that no export of this table made. Move it "
                "away and export again",
                location=env.storage.root,
            )
        features = {name for key in _FEATURES for name in (log.settings.get("protocol") or {}).get(key) or ()}
        if features - {_LOCAL_TIMES}:
            raise UnsupportedError(
                f"{env.storage.root}/{DIRECTORY}: another program enabled {', '.join(sorted(features))} in the Delta "
                f"view. Move {DIRECTORY} away and export again",
                location=env.storage.root,
            )
        schema = parse_schema(metadata.get("schemaString", ""))
        by = tuple(metadata.get("partitionColumns") or ())
        columns = None if schema is None else ViewColumns(schema=schema, partition_by=by)
        mark = ExportMark.decode(log.commit_info.get(MARK))
        return ViewState(version=log.version, mark=mark, columns=columns, properties=properties, internal=log)

    def paths(self, env: Env, state: ViewState, groups: pa.Table | None = None) -> pa.Array:
        """See `ViewFormat.paths`. The log is not divided by file groups."""
        del groups
        return live_paths(env.storage, _log(state))

    def commit(self, env: Env, state: ViewState, change: ViewChange) -> bool:
        """See `ViewFormat.commit`."""
        now = env.clock.now_ms()
        actions = list(_actions(env, state, change, now))
        version = state.next_version
        if not env.storage.create(entry_path(version), encode_actions(actions), unique=True):
            return False
        if is_checkpoint_due(replace(_log(state), version=version)):
            self.finish(env, self.load(env), retained=change.retained)
        return True

    def finish(self, env: Env, state: ViewState, *, retained: int) -> None:
        """See `ViewFormat.finish`."""
        log = _log(state)
        if log.version < 0 or not is_checkpoint_due(log):
            return
        mark = state.mark
        transaction = None
        if mark is not None and mark.instant:
            transaction = _transaction(mark, env.clock.now_ms())
        write_checkpoint(env, log, transaction)
        remove_expired(env, replace(log, checkpoints=(*log.checkpoints, log.version)), retained)


def _log(state: ViewState) -> DeltaLog:
    log = state.internal
    assert isinstance(log, DeltaLog)
    return log


def _actions(env: Env, state: ViewState, change: ViewChange, now_ms: int) -> Iterator[Mapping[str, Any]]:
    storage, columns, mark = env.storage, change.columns, change.mark
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite" if change.replaces_all else "Append"},
            "engineInfo": ENGINE,
            "isBlindAppend": False,
            "txnId": env.ids.uuid(),
            INSTANT: mark.instant,
            COMPLETION: mark.completion,
            VIEW_OF: change.view_of,
            MARK: mark.encode(),
        }
    }
    yield from _settings(storage, state, change, now_ms, env)
    if mark.instant:
        yield {"txn": _transaction(mark, now_ms)}
    again = {facts.path for facts in change.added}
    for path in change.removed:
        if path not in again:
            yield {"remove": {"path": encode_path(path), "deletionTimestamp": now_ms, "dataChange": True}}
    for facts in change.added:
        yield {
            "add": {
                "path": encode_path(facts.path),
                "partitionValues": partition_values(facts, columns),
                "size": facts.size_bytes,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": statistics_text(facts, columns),
            }
        }


def _settings(
    storage: Storage, state: ViewState, change: ViewChange, now_ms: int, env: Env
) -> Iterator[Mapping[str, Any]]:
    """Yield the `protocol` and `metaData` actions if they are new or changed."""
    before = _log(state).settings
    features = [_LOCAL_TIMES] if has_local_times(change.columns.schema) else []
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    # A protocol is never lowered: older versions of the view need it.
    if "protocol" not in before or (features and before["protocol"].get("minReaderVersion", 1) < 3):
        yield {"protocol": protocol}
    earlier = before.get("metaData") or {}
    configuration = {**(earlier.get("configuration") or {}), **_PROTECTION, VIEW_OF: change.view_of}
    if change.replaces_all:
        configuration.pop(MIXED, None)
    configuration |= dict(change.properties)
    metadata = {
        "id": earlier.get("id") or env.ids.uuid(),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_text(change.columns, storage.root),
        "partitionColumns": list(change.columns.partition_by),
        "configuration": configuration,
        "createdTime": earlier.get("createdTime") or now_ms,
    }
    if any(earlier.get(name) != value for name, value in metadata.items()):
        yield {"metaData": metadata}


def _transaction(mark: ExportMark, now_ms: int) -> dict[str, Any]:
    return {"appId": _APP, "version": int(mark.completion or mark.instant), "lastUpdated": now_ms}
