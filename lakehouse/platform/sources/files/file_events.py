"""Parse object-store notifications about new files into the objects that they refer to.

    S3             events of S3 and compatible stores, directly, in SNS and SQS messages, or from EventBridge
    Cloud Storage  Pub/Sub messages with attributes, and CloudEvents
    Azure          Event Grid events and CloudEvents of Blob Storage

Keys in S3 events and URLs in Azure events are URL-encoded; other names are plain.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from lakehouse.model.document import parse_json

_CREATED = ("ObjectCreated", "Object Created", "BlobCreated", "BlobRenamed", "OBJECT_FINALIZE", "finalized")
_REMOVED = ("ObjectRemoved", "LifecycleExpiration", "Object Deleted", "BlobDeleted", "OBJECT_DELETE", "deleted")
#: Event kinds without a new object.
_IGNORED = ("TestEvent", "OBJECT_METADATA_UPDATE", "OBJECT_ARCHIVE", "ObjectRestore", "ObjectTagging", "ObjectAcl")
_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An event about an object: its bucket or container, its key, and whether it was deleted."""

    bucket: str
    key: str
    is_deleted: bool


class UnknownEventError(Exception):
    """A string that is not a known kind of notification."""


def events_of_file(data: bytes) -> Iterator[ObjectEvent | str]:
    """Yield the events in a file: one JSON document, or one per line; the beginning of any other string."""
    text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig", errors="replace")
    try:
        documents: list[Any] = [parse_json(text)]
    except ValueError:
        documents = [line for line in text.splitlines() if line.strip()]
    for document in documents:
        try:
            yield from list(_events(document))
        except UnknownEventError:
            shown = document if isinstance(document, str) else json.dumps(document)
            yield shown[:_TEXT]


def _events(value: Any) -> Iterator[ObjectEvent]:
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise UnknownEventError from error
    if isinstance(value, list):
        for one in value:
            yield from _events(one)
        return
    if not isinstance(value, Mapping):
        raise UnknownEventError
    for name in ("Message", "Body", "body"):
        # SNS and SQS messages contain the notification as a JSON string.
        if isinstance(value.get(name), str):
            yield from _events(value[name])
            return
    try:
        if "Records" in value:
            for record in value["Records"]:
                yield from _events(record) if "s3" not in record else _s3(record)
        elif isinstance(value.get("message"), Mapping):
            yield from _events(value["message"])
        elif "attributes" in value:
            marks = value["attributes"]
            yield from _event(marks["eventType"], marks["bucketId"], marks["objectId"])
        elif "s3" in value:
            yield from _s3(value)
        elif value.get("source") == "aws.s3":
            detail = value["detail"]
            yield from _event(value["detail-type"], detail["bucket"]["name"], detail["object"]["key"])
        elif _is_ignored(str(value.get("Event", ""))):
            return
        else:
            yield from _cloud_event(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnknownEventError from error


def _s3(record: Mapping[str, Any]) -> Iterator[ObjectEvent]:
    details = record["s3"]
    return _event(record["eventName"], details["bucket"]["name"], unquote_plus(details["object"]["key"]))


def _cloud_event(value: Mapping[str, Any]) -> Iterator[ObjectEvent]:
    """Yield the event in an Event Grid message or in a Cloud Storage CloudEvent."""
    kind, data = str(value.get("eventType") or value["type"]), value["data"]
    if kind.startswith("google.cloud.storage."):
        yield from _event(kind.rpartition(".")[2], data["bucket"], data["name"])
        return
    if not kind.startswith("Microsoft.Storage."):
        raise UnknownEventError
    address = urlsplit(data.get("destinationUrl") or data["url"])
    container, _, key = address.path.lstrip("/").partition("/")
    yield from _event(kind, container, unquote(key))


def _event(kind: str, bucket: str, key: str) -> Iterator[ObjectEvent]:
    if any(name in kind for name in _CREATED):
        yield ObjectEvent(bucket=bucket, key=key, is_deleted=False)
    elif any(name in kind for name in _REMOVED):
        yield ObjectEvent(bucket=bucket, key=key, is_deleted=True)
    elif not _is_ignored(kind):
        raise UnknownEventError


def _is_ignored(kind: str) -> bool:
    return any(name in kind for name in _IGNORED)
