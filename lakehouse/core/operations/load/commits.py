"""Find completed writes and their metadata, on the active and on the archived timeline.

# Unique keys

The timeline proves that each record key of a table is in one row, so that an index of keys finds all rows (MDT-4.5).

An index of keys has one place for each key. If a key is in two rows, it finds the row that was written last. So reads
skip files by such an index only if the timeline proves that keys are unique:

    mark       a commit of this package whose write looked up its keys, or compared them with the record index, stores
               the scope in which keys are unique after it: each partition, or the table
    build      a build of the record index reads all keys, and fails if one is repeated; the properties of the table
               store the newest write that it read
    services   commits that add no key change nothing: the write before them counts

Other programs store no mark. Their inserts may repeat keys, so the proof ends with their first commit that adds rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.metadata.place import BY_REQUEST, UNIQUE_KEYS
from lakehouse.core.operations.load.table import LoadedTable, stored_options
from lakehouse.core.state.file_system_view import first_write
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.model.commit import REWRITES, CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, Timeline
from lakehouse.spec.options.indexing import TRUSTED_KEYS

#: Operations that add no key to a table, also in other programs.
_ADDS_NO_KEY = frozenset({*REWRITES, Operation.DELETE, Operation.DELETE_PARTITION, Operation.ALTER_SCHEMA})
_ARCHIVED_BATCH = 64
_MOST_NAMES = 1_000


def latest_extra(table: LoadedTable, key: str) -> str | None:
    """Return the value of `key` in the extra metadata of the newest completed write that has the key."""
    newest = latest_commit(table, key)
    return None if newest is None else newest[1].extra[key]


def latest_commit(
    table: LoadedTable, key: str, value: str | None = None, *, archived: bool = True
) -> tuple[Instant, CommitMetadata] | None:
    """Return the newest completed write whose extra metadata contains `key`, with its metadata (see `summary`).

    Args:
        table: The loaded table.
        key: A key of the extra metadata.
        value: The value that the key must have; None accepts any value that is not empty.
        archived: Search the archived writes if no write of the active timeline matches.
    """
    for instant in reversed(table.timeline.writes().by_completion()):
        metadata = table.store.summary(instant)
        carried = metadata.extra.get(key)
        if carried and value in (None, carried):
            return instant, metadata
    if not archived:
        return None
    # Commits that an upgrade from version 6 archived are JSON, which escapes some characters of a value.
    is_plain = value is not None and value.isascii() and not set(value) & set('"\\')
    for instant, metadata in archived_commits(table, containing=value if value and is_plain else key):
        carried = metadata.extra.get(key)
        if carried and value in (None, carried):
            return instant, metadata
    return None


def recent_files(table: LoadedTable, count: int = 3) -> list[pa.Table]:
    """Return for each of the newest completed writes its files as `COMMIT_FILES`, newest first."""
    instants = table.timeline.writes().by_completion()[-count:]
    written = table.store.files(instants)
    of_instant = written.column("instant")
    return [written.filter(pc.equal(of_instant, instant.requested)) for instant in reversed(instants)]


def recent_partitions(table: LoadedTable) -> frozenset[str]:
    """Return partitions that have a metadata file according to the newest completed writes.

    A write creates the metadata file of a partition before its first file there. Only a clean deletes it, if the
    partition is empty and no write is pending. So the partitions of writes that are newer than all cleans have it.
    """
    removing = table.timeline.where(action=(Action.CLEAN, Action.RESTORE))
    last = max((instant.requested for instant in removing), default="")
    names = set[str]()
    for files in recent_files(table):
        if files.num_rows and files["instant"][0].as_py() > last:
            names.update(pc.unique(files["partition"]).to_pylist())
    # Bounded, because the names are sent to tasks.
    return frozenset(names) if len(names) <= _MOST_NAMES else frozenset()


def archived_writes(
    table: LoadedTable, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
) -> Timeline:
    """Return the archived writes between the bounds; `requested_up_to` is inclusive.

    Skips two kinds of archived writes: writes that are not older than the active timeline, because they were undone
    later, and writes that are still on the active timeline.
    """
    first = first_write(table.timeline)
    if not first:
        return Timeline()
    last = first if requested_up_to is None else min(first, requested_up_to)
    archived = table.store.archived(
        requested_from=requested_from, requested_up_to=last, completed_after=completed_after
    )
    active = {instant.key for instant in table.timeline}
    return Timeline(tuple(i for i in archived if i.requested < first and i.key not in active))


def with_archived_writes(table: LoadedTable, completed_after: str) -> LoadedTable:
    """Return the table with all archived writes on its timeline if one of them completed after this time."""
    if not archived_writes(table, completed_after=completed_after):
        return table
    return replace(table, timeline=Timeline((*archived_writes(table), *table.timeline)))


def writes_since(table: LoadedTable, before: Timeline, now: Timeline) -> list[Instant]:
    """Return the writes that are completed in `now` and not in `before`, including writes archived in between."""
    earlier = {instant.requested for instant in before.writes()}
    current = now.writes()
    writes = [instant for instant in current if instant.requested not in earlier]
    # An archive moves the oldest writes. It can have moved a newer write only if it also moved a write of `before`, or
    # if `before` contains no writes.
    if earlier - {instant.requested for instant in current} or (writes and not earlier):
        if table.config.layout.has_completion_times:
            latest = max((instant.completion for instant in before.writes()), default="")
            archived = archived_writes(replace(table, timeline=now), completed_after=latest)
        else:
            # A write that completed last may have the smallest time. An archive stops at the last write before a
            # pending one, so every write that was pending in `before` is later than the first write there.
            first = min(earlier, default="")
            archived = archived_writes(replace(table, timeline=now), requested_from=first)
        writes = [*(instant for instant in archived if instant.requested not in earlier), *writes]
    return writes


def archived_commits(
    table: LoadedTable, *, requested_up_to: str | None = None, containing: str = ""
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield the archived writes whose metadata contains the string `containing`, the latest completion first.

    Reads a batch of writes at a time, so a caller that stops early saves the rest of the reads.
    """
    writes = archived_writes(table, requested_up_to=requested_up_to).by_completion()
    newest_first = tuple(reversed(writes))
    for start in range(0, len(newest_first), _ARCHIVED_BATCH):
        yield from table.store.archived_commits(newest_first[start : start + _ARCHIVED_BATCH], containing)


class KeyScope(StrEnum):
    """Where each record key is in one row only; an empty scope means that keys may be repeated."""

    NONE = ""
    PARTITION = "partition"
    TABLE = "table"

    def within(self, other: KeyScope) -> KeyScope:
        """Return the smaller one of two scopes."""
        scopes = list(KeyScope)
        return min(self, other, key=scopes.index)

    def covers(self, other: KeyScope) -> bool:
        """Return whether keys that are unique in this scope are unique in the other one."""
        return self.within(other) is other


def adds_keys(operation: str) -> bool:
    """Return whether a commit with this operation may add keys."""
    return operation not in _ADDS_NO_KEY


def key_scope(table: LoadedTable, timeline: Timeline | None = None) -> KeyScope:
    """Return the scope in which the timeline proves that keys are unique.

    Args:
        table: The loaded table.
        timeline: A newer timeline of the table.
    """
    timeline = table.timeline if timeline is None else timeline
    scope = _proven(table, timeline, table.config.raw)
    if scope is KeyScope.NONE and table.timeline is not timeline:
        # A build of the index may have changed the properties since the table was loaded.
        scope = _proven(table, timeline, read_properties(table.env.storage) or {})
    return scope if table.config.is_partitioned or not scope else KeyScope.TABLE


def trusts_keys(table: LoadedTable) -> bool:
    """Return whether the options of the table state that no other writer repeats a key."""
    return stored_options(table.config).get(TRUSTED_KEYS, "").strip().lower() == "true"


def mark_of(table: LoadedTable, instant: Instant, timeline: Timeline, scope: KeyScope) -> dict[str, str]:
    """Return the extra metadata for a commit after which keys are unique in `scope`; empty without a scope.

    Without completion times, a pending write with an earlier time may complete later, although this commit stays the
    newest one. So the mark also has the time from which on earlier writes need marks of their own.
    """
    if not scope:
        return {}
    if table.config.layout.has_completion_times:
        return {UNIQUE_KEYS: scope.value}
    pending = [i.requested for i in timeline.where(pending=True) if i.requested < instant.requested]
    return {UNIQUE_KEYS: f"{scope} {min(pending, default=instant.requested)}"}


def _proven(table: LoadedTable, timeline: Timeline, properties: Mapping[str, str]) -> KeyScope:
    writes, has_times = timeline.writes().by_completion(), table.config.layout.has_completion_times
    built, scope_of_build = _parts(properties.get(UNIQUE_KEYS, ""))
    for instant in reversed(writes):
        summary = table.store.summary(instant)
        scope, first_pending = _parts(summary.extra.get(UNIQUE_KEYS, ""))
        # A downgraded table has marks for the order of completion times, which it has no more.
        if scope and (has_times or first_pending):
            passed = [w for w in writes if first_pending and first_pending <= w.requested < instant.requested]
            return _with_passed(table, KeyScope(scope), passed)
        if built == instant.requested and scope_of_build.endswith(BY_REQUEST) is not has_times:
            return KeyScope(scope_of_build.removesuffix(BY_REQUEST))
        if adds_keys(summary.operation):
            return KeyScope.NONE
    return KeyScope.NONE if writes else KeyScope.TABLE


def _with_passed(table: LoadedTable, scope: KeyScope, passed: list[Instant]) -> KeyScope:
    """Return the scope after writes that completed late, whose marks count as well."""
    for _, summary in table.store.summaries(passed):
        if adds_keys(summary.operation):
            scope = scope.within(KeyScope(_parts(summary.extra.get(UNIQUE_KEYS, ""))[0]))
    return scope


def _parts(text: str) -> tuple[str, str]:
    """Return the two words in a mark or in the property; an empty string has none."""
    first, _, second = text.partition(" ")
    return first, second
