"""Files of publications: the publications of a table as JSON, and manifests with one URL per line.

A manifest lists the files of a published version. `SymlinkTextInputFormat` of Hive, Presto, Trino and Athena reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json
from lakehouse.model.publication import EventSpan, Publication, PublishedPartition, Retired, Stage, Version

#: The directory of publications inside the table.
PUBLISHED = ".hoodie/.lakehouse/published"
#: The empty file that may mark a complete partition.
SUCCESS = "_SUCCESS"
_VERSION = 1
_MANIFEST = re.compile(r"(?:[^/]+/)*[0-9]+/manifest")
_COPY = re.compile(r"(?:[^/]+/)*[0-9]+-[0-9a-f]{8}")
_COPIED = re.compile(r"part-\d{5}-\d{5}\.parquet", re.ASCII)


def encode_publications(publications: Mapping[str, Publication], fresh_id: str) -> bytes:
    """Encode publications by `database.table`; `fresh_id` makes the bytes different from those of any other writer."""
    tables = {name: _publication(publication) for name, publication in sorted(publications.items())}
    return json.dumps({"id": fresh_id, "version": _VERSION, "tables": tables}, ensure_ascii=False).encode()


def decode_publications(data: bytes, path: str) -> dict[str, Publication]:
    """Decode the publications of the file at `path`; raise CorruptTableError with the path if it is invalid."""
    try:
        document = parse_json(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']} is newer than the supported version {_VERSION}")
        return {str(name): _decoded(record) for name, record in document["tables"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptTableError(f"{path} is not a file of publications: {error!r}", path=path) from error


def check_publications(publications: Mapping[str, Publication], path: str) -> None:
    """Raise CorruptTableError if a manifest or a copy is outside the directories of its publication.

    Files are written and deleted by these names.
    """
    for target, publication in publications.items():
        for manifest in publication.manifests:
            if not is_manifest(target, manifest):
                raise _foreign(path, target, "manifest", manifest)
        for copy in publication.copies:
            if not is_copy(copy):
                raise _foreign(path, target, "copy", copy)


def is_manifest(target: str, path: str) -> bool:
    """Return whether `path` is a manifest in the directory of the publication `target`."""
    lead = f"{PUBLISHED}/{target}/"
    rest = path.removeprefix(lead)
    return path.startswith(lead) and _is_plain(path) and _MANIFEST.fullmatch(rest) is not None


def is_copy(folder: str) -> bool:
    """Return whether this is the directory of a partition copy, relative to the location of the publication."""
    return _is_plain(folder) and ".hoodie" not in folder.split("/") and _COPY.fullmatch(folder) is not None


def is_copied_file(name: str) -> bool:
    """Return whether this is the name of a file in the directory of a copy."""
    return name == SUCCESS or _COPIED.fullmatch(name) is not None


def encode_manifest(urls: Iterable[str]) -> bytes:
    """Return the manifest of these URLs."""
    return "".join(f"{url}\n" for url in urls).encode()


def decode_manifest(data: bytes) -> tuple[str, ...]:
    """Return the URLs in a manifest."""
    return tuple(line for line in data.decode().split("\n") if line)


def _is_plain(path: str) -> bool:
    return "\0" not in path and not any(segment in ("", ".", "..") for segment in path.split("/"))


def _foreign(path: str, target: str, kind: str, name: str) -> CorruptTableError:
    return CorruptTableError(
        f"{path}: the publication {target} names the {kind} {name!r}, which is not in its own directory. The file is "
        "damaged or forged, so it is not used to publish or delete. Find out which program wrote it; then restore an "
        "earlier version of it, or delete it and publish again.",
        path=path,
        named=name,
    )


def _publication(publication: Publication) -> dict[str, Any]:
    span = publication.span
    stored = {"up_to": span.up_to, "first_ms": span.first_ms, "last_ms": span.last_ms}
    return {
        **({} if span == EventSpan() else {"span": stored}),
        "partitions": {name: _partition(p) for name, p in sorted(publication.partitions.items())},
        "signals": dict(sorted(publication.signals.items())),
        "retired": [{"manifest": r.manifest, "copy": r.copy, "at_ms": r.at_ms} for r in publication.retired],
    }


def _partition(partition: PublishedPartition) -> dict[str, Any]:
    record: dict[str, Any] = {
        "stage": str(partition.stage),
        "instant": partition.version.instant,
        "completion": partition.version.completion,
        "ready_ms": partition.ready_ms,
        "files": partition.files,
        "bytes": partition.size_bytes,
    }
    optional = {
        "manifest": partition.manifest or None,
        "before": None if partition.before is None else _partition(partition.before),
        "copy": partition.copy or None,
        "paths": None if partition.paths is None else list(partition.paths),
        "event_time_ms": partition.event_time_ms,
        "published_ms": partition.published_ms,
        "needs_copy": partition.needs_copy or None,
        "reason": partition.reason or None,
    }
    return record | {name: value for name, value in optional.items() if value is not None}


def _decoded(record: Mapping[str, Any]) -> Publication:
    return Publication(
        partitions={str(name): _decoded_partition(p) for name, p in record["partitions"].items()},
        signals={str(name): int(at_ms) for name, at_ms in record["signals"].items()},
        retired=tuple(_decoded_retired(r) for r in record["retired"]),
        span=_decoded_span(record.get("span") or {}),
    )


def _decoded_retired(record: Mapping[str, Any]) -> Retired:
    return Retired(manifest=str(record["manifest"]), copy=str(record["copy"]), at_ms=int(record["at_ms"]))


def _decoded_span(stored: Mapping[str, Any]) -> EventSpan:
    return EventSpan(
        up_to=str(stored.get("up_to", "")),
        first_ms=_time(stored.get("first_ms")),
        last_ms=_time(stored.get("last_ms")),
    )


def _decoded_partition(record: Mapping[str, Any]) -> PublishedPartition:
    paths, before = record.get("paths"), record.get("before")
    return PublishedPartition(
        stage=Stage(record["stage"]),
        version=Version(instant=str(record["instant"]), completion=str(record["completion"])),
        manifest=str(record.get("manifest", "")),
        copy=str(record.get("copy", "")),
        before=None if before is None else _decoded_partition(before),
        paths=None if paths is None else tuple(map(str, paths)),
        event_time_ms=_time(record.get("event_time_ms")),
        ready_ms=int(record["ready_ms"]),
        published_ms=_time(record.get("published_ms")),
        files=int(record["files"]),
        size_bytes=int(record["bytes"]),
        needs_copy=bool(record.get("needs_copy", False)),
        reason=str(record.get("reason", "")),
    )


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
