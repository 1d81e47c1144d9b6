"""Whether each record key of a table is in one row, so that an index of keys finds all rows (MDT-4.5).

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

from collections.abc import Mapping
from enum import StrEnum

from lakehouse.core.metadata.place import BY_REQUEST, UNIQUE_KEYS
from lakehouse.core.operations.load.table import LoadedTable, stored_options
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.model.commit import REWRITES, Operation
from lakehouse.model.instant import Instant, Timeline
from lakehouse.spec.options.indexing import TRUSTED_KEYS

#: Operations that add no key to a table, whoever runs them.
_ADDS_NO_KEY = frozenset({*REWRITES, Operation.DELETE, Operation.DELETE_PARTITION, Operation.ALTER_SCHEMA})


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
    """Return the two words of a mark or of the property; an empty string has none."""
    first, _, second = text.partition(" ")
    return first, second
