"""The metadata file of an Iceberg view: find the newest one, and make the next one (Iceberg spec: table metadata).

A metadata file is a JSON document; functions here take one and return a new one. The number in its name grows by one,
and the file is created if absent, so it is the commit. `version-hint.text` may be older after a crash: the files after
the hint are probed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from lakehouse.core.env import Env
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError

DIRECTORY = "metadata"
HINT = f"{DIRECTORY}/version-hint.text"
FORMAT_VERSION = 2
_FIRST_PARTITION_ID = 1000
_NAME = re.compile(r"v([0-9]+)\.metadata\.json")
_MAIN = "main"
Document = dict[str, Any]


def metadata_path(version: int) -> str:
    """Return the path of a metadata file."""
    return f"{DIRECTORY}/v{version}.metadata.json"


def read_hint(storage: Storage) -> int | None:
    """Return the version in the hint; None without a valid hint."""
    try:
        return int(storage.get(HINT))
    except (NotFoundError, ValueError):
        return None


def write_hint(storage: Storage, version: int) -> None:
    """Point the hint to a version, or to a newer one that another exporter committed in between."""
    storage.put(HINT, str(version).encode())
    following = version
    while storage.find(metadata_path(following + 1)) is not None:
        following += 1
    if following > version:
        storage.put(HINT, str(following).encode())


def read_newest(storage: Storage) -> tuple[int, Document | None, int | None]:
    """Return the newest version, its metadata and the hint; -1 and None if there is no view.

    Raises UnsupportedError if the folder belongs to another program or to a partition of the table.
    """
    hint = read_hint(storage)
    version = -1 if hint is None else hint
    document = None if hint is None else _read(storage, version)
    if document is None:
        names = storage.list_names(DIRECTORY)
        versions = [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]
        if not versions:
            _require_free(storage, names)
            return -1, None, None
        version = max(versions)
        document = _read(storage, version)
    while (following := _read(storage, version + 1)) is not None:
        version, document = version + 1, following
    return version, document, hint


def _read(storage: Storage, version: int) -> Document | None:
    path = metadata_path(version)
    try:
        document = json.loads(storage.get(path))
        if not isinstance(document, dict):
            raise ValueError("no object")
        return document
    except NotFoundError:
        return None
    except ValueError as error:
        raise CorruptTableError(f"{storage.root}/{path} is not the metadata of an Iceberg table: {error}") from error


def _require_free(storage: Storage, names: Collection[str]) -> None:
    if PARTITION_METADATA_NAME in names:
        raise UnsupportedError(
            f"{storage.root} has a partition {DIRECTORY!r}, whose folder an Iceberg view needs. Export the table as "
            "Delta"
        )
    other = next((name for name in names if name.endswith(".metadata.json")), None)
    if other is not None:
        raise UnsupportedError(
            f"{storage.root}/{DIRECTORY}/{other} belongs to an Iceberg table that no export of this table made. Move "
            "the folder away and export again",
            path=other,
        )


def new_document(env: Env, location: str, now_ms: int) -> Document:
    """Return the metadata of a table without columns and snapshots, which is not stored in this form."""
    return {
        "format-version": FORMAT_VERSION,
        "table-uuid": env.ids.uuid(),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": -1,
        "partition-specs": [],
        "last-partition-id": _FIRST_PARTITION_ID - 1,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
    }


def current_schema(document: Mapping[str, Any]) -> Document | None:
    """Return the current schema; None before the first version."""
    wanted = document["current-schema-id"]
    return next((schema for schema in document["schemas"] if schema["schema-id"] == wanted), None)


def current_spec(document: Mapping[str, Any]) -> Document | None:
    """Return the default partition spec; None before the first version."""
    wanted = document["default-spec-id"]
    return next((spec for spec in document["partition-specs"] if spec["spec-id"] == wanted), None)


def current_snapshot(document: Mapping[str, Any]) -> Document | None:
    """Return the newest snapshot; None if there is none."""
    wanted = document.get("current-snapshot-id")
    return next((snapshot for snapshot in document["snapshots"] if snapshot["snapshot-id"] == wanted), None)


def with_schema(document: Document, schema: Mapping[str, Any], last_column: int) -> Document:
    """Return the metadata with these columns as the current schema."""
    same = next((s for s in document["schemas"] if s["fields"] == schema["fields"]), None)
    if same is not None:
        return {**document, "current-schema-id": same["schema-id"]}
    number = max((s["schema-id"] for s in document["schemas"]), default=-1) + 1
    schemas = [*document["schemas"], {"schema-id": number, **schema}]
    return {**document, "schemas": schemas, "current-schema-id": number, "last-column-id": last_column}


def with_spec(document: Document, sources: Mapping[str, int]) -> Document:
    """Return the metadata with a default spec that partitions by the identity of columns; `sources` are their ids."""
    wanted = [(name, number) for name, number in sources.items()]
    last = document["last-partition-id"]
    numbers = {
        (field["name"], field["source-id"]): field["field-id"]
        for spec in document["partition-specs"]
        for field in spec["fields"]
    }
    for spec in document["partition-specs"]:
        if [(field["name"], field["source-id"]) for field in spec["fields"]] == wanted:
            return {**document, "default-spec-id": spec["spec-id"]}
    fields = []
    for name, number in wanted:
        if (name, number) not in numbers:
            last += 1
            numbers[(name, number)] = last
        field = {"name": name, "transform": "identity", "source-id": number, "field-id": numbers[(name, number)]}
        fields.append(field)
    spec_id = max((spec["spec-id"] for spec in document["partition-specs"]), default=-1) + 1
    specs = [*document["partition-specs"], {"spec-id": spec_id, "fields": fields}]
    return {**document, "partition-specs": specs, "default-spec-id": spec_id, "last-partition-id": last}


def with_snapshot(document: Document, snapshot: Document, retained: int) -> Document:
    """Return the metadata with a new newest snapshot, without snapshots that are older than the retained ones."""
    snapshots = [*document["snapshots"], snapshot][-(retained + 1) :]
    present = {entry["snapshot-id"] for entry in snapshots}
    log = [
        *document["snapshot-log"],
        {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]},
    ]
    used = {entry.get("schema-id") for entry in snapshots} | {document["current-schema-id"]}
    return {
        **document,
        "last-sequence-number": snapshot["sequence-number"],
        "current-snapshot-id": snapshot["snapshot-id"],
        "snapshots": snapshots,
        "snapshot-log": [entry for entry in log if entry["snapshot-id"] in present],
        "schemas": [schema for schema in document["schemas"] if schema["schema-id"] in used],
        # Tags and branches of other programs would keep snapshots whose files a clean removes.
        "refs": {_MAIN: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
    }


def with_history(document: Document, previous: str | None, retained: int, now_ms: int) -> Document:
    """Return the metadata with the time of the change, and with the location of the previous metadata file."""
    log = list(document["metadata-log"])
    if previous is not None:
        log.append({"metadata-file": previous, "timestamp-ms": document["last-updated-ms"]})
    return {
        **document,
        "last-updated-ms": max(now_ms, document["last-updated-ms"]),
        "metadata-log": log[-retained:],
    }


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a metadata file."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
