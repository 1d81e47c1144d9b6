"""The format `iceberg`: load a view from its newest metadata file, and commit a change as one snapshot.

    manifests   of the buckets that changed, under new names
    list        of all manifests of the snapshot
    metadata    create v<n>.metadata.json if absent: the commit; a lost race returns False
    hint        version-hint.text
    expiry      metadata files and manifests that no retained snapshot needs

A crash before the commit leaves files that nothing names. The properties of the table contain the mark and the id of
the snapshot of the last export: another current snapshot was written by another program.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.platform.export.columns import ViewColumns
from lakehouse.platform.export.iceberg.manifests import (
    Entry,
    decode_manifest,
    decode_manifest_list,
    deleted_entry,
    encode_manifest,
    encode_manifest_list,
    kept_entry,
    manifest_record,
    new_entry,
)
from lakehouse.platform.export.iceberg.metadata import (
    DIRECTORY,
    Document,
    current_schema,
    current_snapshot,
    current_spec,
    encode_document,
    metadata_path,
    new_document,
    read_hint,
    read_newest,
    with_history,
    with_schema,
    with_snapshot,
    with_spec,
    write_hint,
)
from lakehouse.platform.export.iceberg.types import (
    ColumnIds,
    arrow_schema,
    column_ids,
    earlier_mappings,
    name_mapping,
    schema_of,
)
from lakehouse.platform.export.mark import ExportMark
from lakehouse.platform.export.view import COMPLETION, INSTANT, MARK, MIXED, VIEW_OF, ViewChange, ViewState

_SNAPSHOT, _BUCKETS, _ID = "lakehouse.export.snapshot", "lakehouse.export.buckets", "lakehouse.export.id"
#: Other programs may expire snapshots or drop the view. Its files still belong to the table, so none may be deleted.
_PROTECTION = {"gc.enabled": "false"}
_NAME_MAPPING = "schema.name-mapping.default"
_FILES_PER_BUCKET, _MOST_BUCKETS = 500, 200
#: Files are divided again when a view needs this many times more buckets.
_GROWTH = 4
#: Files that an expiry may delete, whatever a manifest list names.
_METADATA_FILE = re.compile(r"metadata/[^/]+\.(?:avro|metadata\.json)")
_AGAIN = "another program moved or changed the view"


@dataclass(slots=True, kw_only=True)
class _Loaded:
    """The newest metadata, the records of its manifests, and the entries that were read, by manifest path."""

    version: int
    document: Document | None
    hint: int | None
    records: list[dict[str, Any]] | None = None
    entries: dict[str, list[Entry]] = field(default_factory=dict)


class IcebergView:
    """See `ViewFormat`."""

    name = "iceberg"

    def columns(self, columns: ViewColumns, root: str) -> ViewColumns:
        """See `ViewFormat.columns`."""
        schema_of(columns.schema, ColumnIds(), root)
        return columns

    def load(self, env: Env) -> ViewState:
        """See `ViewFormat.load`."""
        version, document, hint = read_newest(env.storage)
        loaded = _Loaded(version=version, document=document, hint=hint)
        if document is None:
            return ViewState(first_version=1, internal=loaded)
        properties = document.get("properties") or {}
        if VIEW_OF not in properties:
            raise UnsupportedError(
                f"{env.storage.root}/{DIRECTORY} belongs to an Iceberg table that no export of this table made. Move "
                "it away and export again",
                location=env.storage.root,
            )
        schema, spec = current_schema(document), current_spec(document)
        kinds = None if schema is None else arrow_schema(schema)
        moved = document["location"] != location_of(env.storage) or _BUCKETS not in properties
        columns = None
        if kinds is not None and spec is not None:
            columns = ViewColumns(schema=kinds, partition_by=tuple(entry["name"] for entry in spec["fields"]))
        is_ours = str(document.get("current-snapshot-id")) == properties.get(_SNAPSHOT)
        return ViewState(
            version=version,
            mark=ExportMark.decode(properties.get(MARK)) if is_ours else None,
            columns=columns,
            properties=properties,
            unusable=_AGAIN if moved else "",
            internal=loaded,
        )

    def paths(self, env: Env, state: ViewState, groups: pa.Table | None = None) -> pa.Array:
        """See `ViewFormat.paths`. Only manifests of the buckets of `groups` are read."""
        loaded = _loaded(state)
        if loaded.document is None:
            return pa.array([], pa.string())
        records = _records(env.storage, loaded)
        if groups is not None:
            buckets = {_bucket(p, f, state) for p, f in zip(*(c.to_pylist() for c in groups.columns), strict=True)}
            records = [record for record in records if _bucket_of(record) in buckets | {None}]
        lead = f"{loaded.document['location']}/"
        entries = _entries(env.storage, loaded, records)
        return pa.array([e["data_file"]["file_path"].removeprefix(lead) for e in entries], pa.string())

    def commit(self, env: Env, state: ViewState, change: ViewChange) -> bool:
        """See `ViewFormat.commit`."""
        storage, loaded, version = env.storage, _loaded(state), state.next_version
        document = _next_document(env, state, change)
        if not storage.create(metadata_path(version), encode_document(document), unique=True):
            return False
        hint = read_hint(storage)
        if hint is not None and hint > version:
            # This version is so old that its number was free again.
            storage.delete(metadata_path(version))
            return False
        write_hint(storage, version)
        _remove_expired(storage, loaded.document, document)
        return True

    def finish(self, env: Env, state: ViewState, *, retained: int) -> None:
        """See `ViewFormat.finish`. The hint of a version whose exporter was killed is written."""
        del retained
        loaded = _loaded(state)
        if state.exists and loaded.hint != state.version:
            write_hint(env.storage, state.version)


def location_of(storage: Storage) -> str:
    """Return the location of the table in the form that readers of Iceberg open."""
    root = storage.root
    return root if root.startswith(("/", "s3://", "gs://", "hdfs://", "memory://")) else storage.native("").rstrip("/")


def _loaded(state: ViewState) -> _Loaded:
    loaded = state.internal
    assert isinstance(loaded, _Loaded)
    return loaded


def _records(storage: Storage, loaded: _Loaded) -> list[dict[str, Any]]:
    if loaded.records is None:
        assert loaded.document is not None
        snapshot = current_snapshot(loaded.document)
        loaded.records = [] if snapshot is None else _manifest_list(storage, loaded.document, snapshot)
    return loaded.records


def _manifest_list(storage: Storage, document: Document, snapshot: Document) -> list[dict[str, Any]]:
    path = _relative(document, snapshot["manifest-list"])
    return decode_manifest_list(_get(storage, path), path)


def _entries(storage: Storage, loaded: _Loaded, records: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Return the entries of manifests that name files of the snapshot; manifests are read once."""
    document = loaded.document
    assert document is not None
    paths = [str(record["manifest_path"]) for record in records]
    missing = [path for path in paths if path not in loaded.entries]

    def read(path: str) -> list[Entry]:
        relative = _relative(document, path)
        return decode_manifest(_get(storage, relative), relative)

    loaded.entries.update(zip(missing, send_all(storage, read, missing), strict=True))
    return [entry for path in paths for entry in loaded.entries[path]]


def _get(storage: Storage, path: str) -> bytes:
    try:
        return storage.get(path)
    except NotFoundError as error:
        raise CorruptTableError(
            f"{storage.root}/{path} is missing, so the Iceberg view cannot be read. Move {DIRECTORY} away and export "
            "again",
            path=path,
        ) from error


def _relative(document: Document, path: str) -> str:
    return path.removeprefix(f"{document['location']}/")


def _bucket(partition: str, file_id: str, state: ViewState) -> int:
    by_partition = state.columns is not None and bool(state.columns.partition_by)
    return bucket_number(partition, file_id, by_partition=by_partition, count=int(state.properties[_BUCKETS]))


def bucket_number(partition: str, file_id: str, *, by_partition: bool, count: int) -> int:
    """Return the bucket of a file: by its partition if the view has partitions, otherwise by its file group."""
    return zlib.crc32((partition if by_partition else f"{partition}/{file_id}").encode()) % count


def _bucket_of(record: Mapping[str, Any]) -> int | None:
    """Return the bucket in the name of a manifest; None for a manifest of another program."""
    _, mark, text = str(record["manifest_path"]).removesuffix(".avro").rpartition("-b")
    return int(text) if mark and text.isdigit() else None


def _next_document(env: Env, state: ViewState, change: ViewChange) -> Document:
    storage, loaded = env.storage, _loaded(state)
    now, location = env.clock.now_ms(), location_of(env.storage)
    before = loaded.document
    document = {**before, "location": location} if before is not None else new_document(env, location, now)
    earlier = current_schema(document)
    ids = ColumnIds(earlier, document["last-column-id"])
    document = with_schema(document, schema_of(change.columns.schema, ids, storage.root), ids.last)
    schema = current_schema(document)
    assert schema is not None
    numbers = column_ids(schema)
    stored = {facts.stored: None for facts in change.added if facts.stored is not None}
    earlier_names = earlier_mappings(document, document["properties"].get(_NAME_MAPPING))
    mapping = name_mapping(schema, ids, earlier=earlier_names, stored=stored)
    document["last-column-id"] = max(ids.last, document["last-column-id"])
    document = with_spec(document, {name: numbers[name] for name in change.columns.partition_by})
    properties = {**document["properties"], **_PROTECTION, _NAME_MAPPING: mapping}
    if change.replaces_all:
        properties.pop(MIXED, None)
        properties[_BUCKETS] = str(_bucket_count(len(change.added)))
    else:
        properties[_BUCKETS] = _grown(properties[_BUCKETS], document, change)
    properties |= dict(change.properties)
    properties |= {VIEW_OF: change.view_of, MARK: change.mark.encode(), _ID: env.ids.uuid()}
    document["properties"] = properties
    if change.added or change.removed or current_snapshot(document) is None or change.replaces_all:
        snapshot = _snapshot(env, state, change, document, now)
        document = with_snapshot(document, snapshot, change.retained)
        properties[_SNAPSHOT] = str(snapshot["snapshot-id"])
    previous = None if before is None else f"{location}/{metadata_path(state.version)}"
    return with_history(document, previous, change.retained, now)


def _bucket_count(files: int) -> int:
    return min(_MOST_BUCKETS, files // _FILES_PER_BUCKET + 1)


def _grown(count: str, document: Document, change: ViewChange) -> str:
    """Return the number of buckets of the next snapshot: more if the view grew to several times its size."""
    snapshot = current_snapshot(document)
    before = 0 if snapshot is None else int(snapshot["summary"].get("total-data-files", 0))
    wanted = _bucket_count(before + len(change.added))
    return str(wanted) if wanted >= _GROWTH * int(count) else count


def _snapshot(env: Env, state: ViewState, change: ViewChange, document: Document, now_ms: int) -> Document:
    """Write the manifests and the manifest list of a new snapshot, and return the snapshot."""
    storage, loaded = env.storage, _loaded(state)
    parent = current_snapshot(document)
    number = int(env.ids.uuid().replace("-", ""), 16) >> 65
    unique = env.ids.uuid()
    writer = _SnapshotWriter(
        storage=storage,
        document=document,
        columns=change.columns,
        snapshot=number,
        sequence=document["last-sequence-number"] + 1,
        unique=unique,
    )
    records = writer.write(loaded, state, change)
    snapshot: Document = {
        "snapshot-id": number,
        "sequence-number": writer.sequence,
        "timestamp-ms": max(now_ms, document["last-updated-ms"]),
        "manifest-list": f"{document['location']}/{DIRECTORY}/snap-{number}-1-{unique}.avro",
        "summary": _summary(change, writer, None if change.replaces_all else parent),
        "schema-id": document["current-schema-id"],
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent["snapshot-id"]
    storage.put(_relative(document, snapshot["manifest-list"]), encode_manifest_list(records, snapshot))
    return snapshot


@dataclass(slots=True, kw_only=True)
class _SnapshotWriter:
    """Writes the manifests of one snapshot; `removed` collects the entries of removed files."""

    storage: Storage
    document: Document
    columns: ViewColumns
    snapshot: int
    sequence: int
    unique: str
    removed: list[Entry] = field(default_factory=list)

    def write(self, loaded: _Loaded, state: ViewState, change: ViewChange) -> list[Mapping[str, Any]]:
        """Write the manifests of the changed buckets, and return the records of all manifests of the snapshot."""
        by_bucket: dict[int, list[Entry]] = {}
        schema = current_schema(self.document)
        assert schema is not None
        count, by_partition = int(self.document["properties"][_BUCKETS]), bool(self.columns.partition_by)
        for facts in change.added:
            partition, _, name = facts.path.rpartition("/")
            file_id = name.split("_", 1)[0]
            bucket = bucket_number(partition, file_id, by_partition=by_partition, count=count)
            entry = new_entry(facts, self.document["location"], self.snapshot, self.columns, schema)
            by_bucket.setdefault(bucket, []).append(entry)
        before = [] if loaded.document is None else _records(self.storage, loaded)
        if change.replaces_all:
            self.removed = _entries(self.storage, loaded, before) if before else []
            return [self._manifest(bucket, entries) for bucket, entries in sorted(by_bucket.items())]
        return self._changed(loaded, before, change, by_bucket)

    def _changed(
        self,
        loaded: _Loaded,
        before: Sequence[Mapping[str, Any]],
        change: ViewChange,
        by_bucket: dict[int, list[Entry]],
    ) -> list[Mapping[str, Any]]:
        gone = {f"{self.document['location']}/{path}" for path in change.removed}
        buckets = {_bucket_of_path(path, self.document, self.columns) for path in change.removed} | by_bucket.keys()
        records: list[Mapping[str, Any]] = []
        assert loaded.document is not None
        divides = loaded.document["properties"][_BUCKETS] != self.document["properties"][_BUCKETS]
        for record in before:
            bucket = _bucket_of(record)
            if bucket is not None and bucket not in buckets and not divides:
                if record["added_files_count"] or record["existing_files_count"]:
                    records.append(record)
                continue
            for entry in _entries(self.storage, loaded, [record]):
                is_gone = entry["data_file"]["file_path"] in gone
                changed = deleted_entry(entry, record, self.snapshot) if is_gone else kept_entry(entry, record)
                if is_gone:
                    self.removed.append(entry)
                if divides:
                    path = _relative(self.document, entry["data_file"]["file_path"])
                    bucket = _bucket_of_path(path, self.document, self.columns)
                by_bucket.setdefault(-1 if bucket is None else bucket, []).append(changed)
        return [*records, *(self._manifest(bucket, entries) for bucket, entries in sorted(by_bucket.items()))]

    def _manifest(self, bucket: int, entries: list[Entry]) -> Mapping[str, Any]:
        """Write one manifest and return its record."""
        schema, spec = current_schema(self.document), current_spec(self.document)
        assert schema is not None and spec is not None
        # A file of another program has no bucket; its manifest is read by every export.
        name = f"{self.unique}-b{bucket}" if bucket >= 0 else f"{self.unique}-other"
        path = f"{DIRECTORY}/{name}.avro"
        data = encode_manifest(entries, self.columns, schema, spec)
        self.storage.put(path, data)
        return manifest_record(
            entries,
            path=f"{self.document['location']}/{path}",
            size=len(data),
            snapshot=self.snapshot,
            sequence=self.sequence,
            spec=spec["spec-id"],
            columns=self.columns,
        )


def _bucket_of_path(path: str, document: Document, columns: ViewColumns) -> int:
    partition, _, name = path.rpartition("/")
    count = int(document["properties"][_BUCKETS])
    return bucket_number(partition, name.split("_", 1)[0], by_partition=bool(columns.partition_by), count=count)


def _summary(change: ViewChange, writer: _SnapshotWriter, parent: Document | None) -> dict[str, str]:
    """Return the summary of a snapshot; its values are strings."""
    added, removed = change.added, [entry["data_file"] for entry in writer.removed]
    rows, size = sum(file.rows for file in added), sum(file.size_bytes for file in added)
    gone_rows = sum(file["record_count"] for file in removed)
    gone_size = sum(file["file_size_in_bytes"] for file in removed)
    totals = {} if parent is None else parent["summary"]
    if parent is None:
        counts = (len(added), rows, size)
    else:
        counts = (
            int(totals.get("total-data-files", 0)) + len(added) - len(removed),
            int(totals.get("total-records", 0)) + rows - gone_rows,
            int(totals.get("total-files-size", 0)) + size - gone_size,
        )
    numbers = {
        "added-data-files": len(added),
        "deleted-data-files": len(removed),
        "added-records": rows,
        "deleted-records": gone_rows,
        "added-files-size": size,
        "removed-files-size": gone_size,
        "total-data-files": counts[0],
        "total-records": counts[1],
        "total-files-size": counts[2],
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    return {
        "operation": "overwrite" if removed else "append",
        **{name: str(value) for name, value in numbers.items()},
        INSTANT: change.mark.instant,
        COMPLETION: change.mark.completion,
        VIEW_OF: change.view_of,
    }


def _remove_expired(storage: Storage, before: Document | None, now: Document) -> None:
    """Delete the files that no retained version needs: metadata files, manifest lists and manifests.

    The history is linear, so a manifest that a snapshot has and the next one has not is needed by no later snapshot.
    """
    if before is None:
        return
    location = now["location"]
    if before["location"] != location:
        return
    retained = {entry["metadata-file"] for entry in now["metadata-log"]}
    gone = [entry["metadata-file"] for entry in before["metadata-log"] if entry["metadata-file"] not in retained]
    present = {snapshot["snapshot-id"] for snapshot in now["snapshots"]}
    expired = [snapshot for snapshot in before["snapshots"] if snapshot["snapshot-id"] not in present]
    chain = [*expired, *now["snapshots"][:1]]
    lists = send_all(storage, lambda snapshot: _listed(storage, now, snapshot), chain) if expired else []
    for number, snapshot in enumerate(expired):
        gone += sorted(lists[number] - lists[number + 1])
        gone.append(snapshot["manifest-list"])
    paths = [_relative(now, path) for path in gone]
    storage.delete_many([path for path in paths if _METADATA_FILE.fullmatch(path)])


def _listed(storage: Storage, document: Document, snapshot: Document) -> set[str]:
    """Return the manifests of a snapshot; none if an earlier run deleted its list."""
    try:
        return {str(record["manifest_path"]) for record in _manifest_list(storage, document, snapshot)}
    except CorruptTableError:
        return set()
