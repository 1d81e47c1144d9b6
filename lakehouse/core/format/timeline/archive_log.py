"""Log files with the archived timeline of table version 6 (TL-5.1).

    archived/.commits_.archive.<N>_1-0-1    blocks of Avro records, one record per file of an instant

Releases differ in the fields of their records, so a block is read with the schema in its header. The record of this
package omits `hoodieCompactionMetadata`, which no release fills since 0.6, and has the fields that newer releases added
to commits: readers skip unknown fields.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import fastavro

from lakehouse.core.format.avro.bounds import check_schema
from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.timeline.schemas import (
    ARCHIVED_ENTRY,
    CLEAN_METADATA,
    CLEANER_PLAN,
    COMPACTION_PLAN,
    INDEX_METADATA,
    REQUESTED_REPLACE_METADATA,
    ROLLBACK_METADATA,
    SAVEPOINT_METADATA,
    Schema,
)
from lakehouse.errors import CorruptTableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Action, Instant, State

#: The folder of the archive if the properties name none, relative to `.hoodie`.
DEFAULT_FOLDER = "archived"

_NAME = re.compile(r"\.commits_\.archive\.(\d{1,9})_[0-9-]+", re.ASCII)
_VERSION = 3
_COUNT = struct.Struct(">i")
#: Number of records in a block: `hoodie.commits.archival.batch` of Hudi.
_BATCH = 10
#: Fields of an entry that identify the state of an instant, with the instant time first.
_TIMES = ("commitTime", "actionType", "actionState")
_CHANGED = "stateTransitionTime"
_COMMITS = ("commit", "deltacommit", "logcompaction")
_METADATA = "hoodieCommitMetadata"
_REPLACE = "hoodieReplaceCommitMetadata"
#: The Avro records of completed actions, by action: the field of the entry and the schema of the file.
_COMPLETED: Mapping[str, tuple[str, Schema]] = {
    "clean": ("hoodieCleanMetadata", CLEAN_METADATA),
    "rollback": ("hoodieRollbackMetadata", ROLLBACK_METADATA),
    "savepoint": ("hoodieSavePointMetadata", SAVEPOINT_METADATA),
    "indexing": ("hoodieIndexCommitMetadata", INDEX_METADATA),
}
#: The Avro records of plans, by the field of the entry.
_PLANS: Mapping[str, Schema] = {
    "hoodieCleanerPlan": CLEANER_PLAN,
    "hoodieCompactionPlan": COMPACTION_PLAN,
    "hoodieRequestedReplaceMetadata": REQUESTED_REPLACE_METADATA,
}
#: The field of the plan in the one record of an action, by its completed action.
_PLAN_OF: Mapping[str, str] = {
    "clean": "hoodieCleanerPlan",
    "commit": "hoodieCompactionPlan",
    "deltacommit": "hoodieCompactionPlan",
    "replacecommit": "hoodieRequestedReplaceMetadata",
}
_EMPTY_COMMIT: Mapping[str, Any] = {"partitionToWriteStats": {}, "extraMetadata": {}, "operationType": "UNKNOWN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """One file of an instant: its state, the action in its name, its content and the time of its last change."""

    instant: Instant
    action: str
    content: bytes
    changed: str


def log_name(number: int) -> str:
    """Return the name of the archive file with this number."""
    return f".commits_.archive.{number}_1-0-1"


def parse_log_name(name: str) -> int | None:
    """Return the number of an archive file, or None for a name that no archive file has."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_log(files: Iterable[StateFile]) -> Iterator[bytes]:
    """Yield the blocks of an archive file with one record for each state file, in the given order.

    Raises CorruptTableError for a file whose content does not fit its action.
    """
    headers = {BlockHeader.SCHEMA: json.dumps(_schema(), separators=(",", ":"))}
    records: list[bytes] = []
    for file in files:
        records.append(_encoded(entry_of(file)))
        if len(records) == _BATCH:
            yield encode_block(BlockType.AVRO_DATA, headers, _content(records))
            records = []
    if records:
        yield encode_block(BlockType.AVRO_DATA, headers, _content(records))


def encode_actions(actions: Iterable[ArchivedAction]) -> Iterator[bytes]:
    """Yield the blocks of an archive file with one completed record for each action, as a downgrade by Hudi writes it.

    Args:
        actions: The actions, with commits in JSON. The completion time becomes the time of the last change.

    Raises:
        CorruptTableError: The content of an action does not fit its kind.
    """
    headers = {BlockHeader.SCHEMA: json.dumps(_schema(), separators=(",", ":"))}
    records: list[bytes] = []
    for action in actions:
        records.append(_encoded(_entry_of_action(action)))
        if len(records) == _BATCH:
            yield encode_block(BlockType.AVRO_DATA, headers, _content(records))
            records = []
    if records:
        yield encode_block(BlockType.AVRO_DATA, headers, _content(records))


def _entry_of_action(action: ArchivedAction) -> dict[str, Any]:
    name = str(action.instant.action.completed_as)
    content = action.metadata or b""
    file = StateFile(instant=action.instant, action=name, content=content, changed=action.instant.completion)
    entry = entry_of(file)
    field = _PLAN_OF.get(name)
    if field is not None and action.plan:
        try:
            entry[field] = read_record(action.plan, _PLANS[field])
        except CorruptTableError:
            # A write that replaces file groups has its inflight commit in place of a plan, which version 6 omits.
            if name != Action.REPLACECOMMIT:
                raise
    return entry


def _content(records: Sequence[bytes]) -> bytes:
    framed = (part for record in records for part in (_COUNT.pack(len(record)), record))
    return b"".join((_COUNT.pack(_VERSION), _COUNT.pack(len(records)), *framed))


def entry_of(file: StateFile) -> dict[str, Any]:
    """Return the record of a state file; fields without a value are omitted."""
    entry: dict[str, Any] = {
        "commitTime": file.instant.requested,
        "actionType": file.action,
        "actionState": file.instant.state.name,
        "version": None,
        _CHANGED: file.changed,
    }
    field = _field_of(file)
    if field is not None:
        value = _value_of(field, file)
        if value is not None:
            entry[field] = value
    return entry


def _field_of(file: StateFile) -> str | None:
    """Return the field of an entry that contains the content of a file; None for a content that is not archived."""
    action, state = file.action, file.instant.state
    if action in _COMMITS and (action != "logcompaction" or state is State.COMPLETED):
        return _METADATA
    if action == "replacecommit":
        pending = {State.REQUESTED: "hoodieRequestedReplaceMetadata", State.INFLIGHT: "HoodieInflightReplaceMetadata"}
        return pending.get(state, _REPLACE)
    if state is State.COMPLETED:
        return _COMPLETED[action][0] if action in _COMPLETED else None
    if action == "clean":
        return "hoodieCleanerPlan"
    return "hoodieCompactionPlan" if action in ("compaction", "logcompaction") and state is State.REQUESTED else None


def _value_of(field: str, file: StateFile) -> Any:
    if field in (_METADATA, _REPLACE, "HoodieInflightReplaceMetadata"):
        if not file.content:
            return dict(_EMPTY_COMMIT) if field == _METADATA else None
        try:
            commit = parse_json(file.content)
        except ValueError as error:
            raise _unreadable(file, str(error)) from error
        if not isinstance(commit, dict):
            raise _unreadable(file, "it is not a JSON object")
        return _with_texts(commit)
    if not file.content:
        return None
    schema = _PLANS[field] if field in _PLANS else _COMPLETED[file.action][1]
    return read_record(file.content, schema)


def _with_texts(commit: dict[str, Any]) -> dict[str, Any]:
    """Return a commit without the nulls in its extra metadata, which the record of an archive cannot contain."""
    extra = {key: value for key, value in (commit.get("extraMetadata") or {}).items() if value is not None}
    return {**commit, "extraMetadata": extra}


def _unreadable(file: StateFile, reason: str) -> CorruptTableError:
    instant = file.instant
    return CorruptTableError(
        f"the {instant.state.name.lower()} file of the {file.action} {instant.requested} cannot be archived: {reason}",
        instant=instant.requested,
    )


def read_instants(data: bytes) -> list[Instant]:
    """Return the completed instants in an archive file, in the order of the file, without completion times.

    Raises CorruptTableError for a block that cannot be read. A block that a crashed writer left incomplete is skipped.
    """
    return [
        instant for record, read in _records(data) if (instant := _completed(read(record, _identities()))) is not None
    ]


def read_changes(data: bytes) -> dict[tuple[str, Action], str]:
    """Return the time of the last change of each completed action in an archive file, as an instant time.

    Releases before 0.13 stored no such times; these actions are omitted. Raises CorruptTableError as `read_instants`.
    """
    changes: dict[tuple[str, Action], str] = {}
    for record, read in _records(data):
        entry = read(record, _changes())
        instant = _completed(entry)
        if instant is not None and entry.get(_CHANGED):
            changes[instant.key] = entry[_CHANGED]
    return changes


def read_actions(
    data: bytes, requested_times: frozenset[str] | None = None, containing: bytes = b""
) -> Iterator[ArchivedAction]:
    """Yield the completed actions in an archive file with their metadata and plans, in the order of the file.

    Args:
        data: The content of the file.
        requested_times: Only actions with these requested times are yielded; None means all.
        containing: Only actions whose entry contains these bytes are yielded. Avro stores strings as plain UTF-8.

    Raises:
        CorruptTableError: A block cannot be read.
    """
    plans: dict[str, bytes] = {}
    for record, read in _records(data):
        if requested_times is not None:
            identity = read(record, _identities())
            if identity["commitTime"] not in requested_times:
                continue
        entry = read(record, None)
        requested = entry.get("commitTime") or ""
        plan = next((write_record(_PLANS[f], entry[f]) for f in _PLANS if _is_plan(f, entry.get(f))), None)
        if plan is not None:
            plans[requested] = plan
        instant = _completed(entry)
        if instant is not None and containing in record:
            yield ArchivedAction(instant=instant, metadata=_metadata_of(entry), plan=plans.get(requested))


def _is_plan(field: str, value: Mapping[str, Any] | None) -> bool:
    """Return whether the value of a field is a plan; writes other than clusterings have a record of nulls."""
    return value is not None and (field != "hoodieRequestedReplaceMetadata" or bool(value.get("clusteringPlan")))


def _metadata_of(entry: Mapping[str, Any]) -> bytes | None:
    action = entry["actionType"]
    if action in _COMPLETED:
        field, schema = _COMPLETED[action]
        return None if entry.get(field) is None else write_record(schema, entry[field])
    value = entry.get(_REPLACE if action == "replacecommit" else _METADATA)
    return None if value is None else json.dumps(value).encode()


def _completed(entry: Mapping[str, Any]) -> Instant | None:
    """Return the instant of a completed entry. Releases before 0.6 wrote no states: completed only."""
    if (entry.get("actionState") or State.COMPLETED.name) != State.COMPLETED.name:
        return None
    requested, action = entry.get("commitTime") or "", entry.get("actionType") or ""
    try:
        return Instant(requested=requested, action=Action(action).completed_as, state=State.COMPLETED)
    except ValueError:
        raise CorruptTableError(f"the archived instant {requested} has the unknown action {action!r}") from None


#: Decodes a record; the second argument is the schema of the result, or None for all fields.
_Read = Callable[[bytes, Any], dict[str, Any]]


def _records(data: bytes) -> Iterator[tuple[bytes, _Read]]:
    for block in scan_blocks(io.BytesIO(data), requires_instant=False):
        if block.kind is BlockType.CORRUPT:
            continue
        if block.kind is not BlockType.AVRO_DATA or block.schema is None:
            raise CorruptTableError(f"an archive file has a {block.kind.name} block at byte {block.offset}")
        read = _reader(block.schema)
        for record in _framed(data[block.offset : block.offset + block.length], block.offset):
            yield record, read


def _framed(content: bytes, offset: int) -> Iterator[bytes]:
    try:
        version, count = _COUNT.unpack_from(content)[0], _COUNT.unpack_from(content, _COUNT.size)[0]
        if not 1 <= version <= _VERSION:
            raise CorruptTableError(f"the block at byte {offset} has version {version}; expected {_VERSION}")
        at = 2 * _COUNT.size
        for _ in range(count):
            (length,) = _COUNT.unpack_from(content, at)
            at += _COUNT.size
            if not 0 <= length <= len(content) - at:
                raise CorruptTableError(f"a record in the block at byte {offset} has {length} bytes")
            yield content[at : at + length]
            at += length
    except struct.error as error:
        raise CorruptTableError(f"the block at byte {offset} ends inside a record") from error


@lru_cache(maxsize=8)
def _reader(schema: str) -> _Read:
    try:
        parsed = json.loads(schema)
        check_schema(parsed)
        written = fastavro.parse_schema(parsed)
    except Exception as error:  # fastavro raises many exception types for a damaged schema
        raise CorruptTableError(f"an archive file has a schema that cannot be read: {error}") from error

    def read(record: bytes, wanted: Any) -> dict[str, Any]:
        try:
            entry: Any = fastavro.schemaless_reader(io.BytesIO(record), written, wanted)
        except Exception as error:  # fastavro raises many exception types for damaged bytes
            raise CorruptTableError(f"an archived entry cannot be read: {type(error).__name__}: {error}") from error
        result: dict[str, Any] = entry
        return result

    return read


@cache
def _schema() -> Schema:
    """Return the schema of an entry, in which each record is defined where it occurs first."""
    defined: dict[str, Schema] = {}
    result: Schema = _defined_once(ARCHIVED_ENTRY, defined)
    return result


def _defined_once(kind: Any, defined: dict[str, Schema]) -> Any:
    if isinstance(kind, list):
        return [_defined_once(branch, defined) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "record":
        if kind["name"] in defined:
            return kind["name"]
        defined[kind["name"]] = kind
        plain = {key: value for key, value in kind.items() if key != "namespace" or kind is ARCHIVED_ENTRY}
        return {**plain, "fields": [_defined_once(field, defined) for field in kind["fields"]]}
    return {
        key: _defined_once(value, defined) if key in ("type", "items", "values") else value
        for key, value in kind.items()
    }


@cache
def _parsed() -> Any:
    return fastavro.parse_schema(_schema())


@cache
def _identities() -> Any:
    """Return the schema of an entry with only the fields that identify it."""
    return _narrow(_TIMES)


@cache
def _changes() -> Any:
    """Return the schema of an entry with the fields that identify it, and the time of its last change."""
    return _narrow((*_TIMES, _CHANGED))


def _narrow(names: Sequence[str]) -> Any:
    fields = [field for field in _schema()["fields"] if field["name"] in names]
    return fastavro.parse_schema({**_schema(), "fields": fields})


def _encoded(entry: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    try:
        fastavro.schemaless_writer(sink, _parsed(), dict(entry))
    except Exception as error:  # fastavro raises many exception types for values of other types
        raise CorruptTableError(
            f"the {entry['actionType']} {entry['commitTime']} cannot be archived: {type(error).__name__}: {error}",
            instant=entry["commitTime"],
        ) from error
    return sink.getvalue()
