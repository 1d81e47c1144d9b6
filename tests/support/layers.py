"""Model of a merge-on-read table with a bucket index: writes append log entries without reading the stored rows.

    {(partition path, bucket): base rows + log entries}

A read merges them (DATA-5.2), so the effect of a write depends on the rows in the base file at that time. The model
stores each change as an event. For each read it replays the events in the order of their requested times. A compaction
takes effect at the requested time of its plan, but only for reads that include its completion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.model.instant import Instant
from tests.support.model import Model, Read, Row, key_of, path_of
from tests.support.naive import Entry, newer_of, record_wins
from tests.support.tables import DELETED, KEYS, SCHEMA, Shape

#: (partition path, bucket).
Where = tuple[str, int]


@dataclass(slots=True)
class Layers:
    """One file group: the rows of its base file and the entries of its logs; each row has its commit time."""

    base: list[Entry] = field(default_factory=list)
    logs: list[Entry] = field(default_factory=list)

    def rows(self, *, by_event: bool) -> list[Entry]:
        """Return the rows that a reader sees.

        If several base rows have the same key, only the first is merged with the logs.
        """
        folded: dict[str, Entry] = {}
        for entry in self.logs:
            known = folded.get(entry.key)
            folded[entry.key] = entry if known is None else newer_of(known, entry, by_event=by_event)
        found = []
        for stored in self.base:
            met = folded.pop(stored.key, None)
            wins = met is not None and record_wins(stored, met, by_event=by_event)
            found.append(met if wins else stored)
        return [entry for entry in (*found, *folded.values()) if entry is not None and entry.row is not None]


Groups = dict[Where, Layers]


@dataclass(slots=True)
class Event:
    """A change of the table; `instant` is None until the change is committed."""

    requested: str
    apply: Callable[[Groups, str], None]
    instant: Instant | None = None


@dataclass(slots=True)
class BucketLogs(Model):
    """Expected contents of a merge-on-read table with a bucket index."""

    events: list[Event] = field(default_factory=list)
    pending: list[Event] = field(default_factory=list)

    def upsert(self, rows: Iterable[Row]) -> None:
        """Append rows; rows with the delete flag are deletes."""
        chosen = self.combined(rows)
        self._change(lambda groups, written: self._append(groups, chosen, written))

    def insert(self, rows: Iterable[Row]) -> None:
        """Append rows without those that have the delete flag."""
        chosen = self._inserted(rows)
        self._change(lambda groups, written: self._append(groups, chosen, written))

    def _inserted(self, rows: Iterable[Row]) -> list[Row]:
        """Return one row per key: a bucket of logs has the place of one row of a key."""
        return self.combined(Model._inserted(self, rows))

    def insert_overwrite(self, rows: Iterable[Row]) -> None:
        """Replace the partitions of the rows."""
        chosen = self._inserted(rows)
        paths = {path_of(self.shape, row) for row in chosen}
        self._change(lambda groups, written: self._replace(groups, paths, chosen, written))

    def insert_overwrite_table(self, rows: Iterable[Row]) -> None:
        """Replace all rows of the table."""
        chosen = self._inserted(rows)
        self._change(lambda groups, written: self._replace(groups, None, chosen, written))

    def delete(self, rows: Iterable[Row], *, everywhere: bool) -> None:
        """Append deletes: to the bucket of each key in its partition, or `everywhere` that the key is stored."""
        seek = everywhere and bool(KEYS[self.shape.keys][1])
        keys = {(path_of(self.shape, row), key_of(self.shape, row)) for row in rows}
        self._change(lambda groups, _: self._delete(groups, keys, seek=seek))

    def delete_partitions(self, paths: Iterable[str]) -> None:
        """Remove whole partitions."""
        gone = set(paths)
        self._change(lambda groups, written: self._replace(groups, gone, [], written))

    def planned(self, requested: str, groups: Iterable[Where]) -> None:
        """Record that a compaction of these groups was scheduled."""
        chosen = set(groups)
        self.pending.append(Event(requested, lambda known, _: self._compact(known, chosen)))

    def carried_out(self, instant: Instant) -> None:
        """Record that the plan of this instant was executed."""
        for event in [event for event in self.pending if event.requested == instant.requested]:
            event.instant = instant
            self.events.append(event)
            self.pending.remove(event)

    def committed(self, instant: Instant) -> None:
        """Record that the last change was committed."""
        self.events[-1].requested, self.events[-1].instant = instant.requested, instant

    def forget(self) -> None:
        """Remove the last change, which was not committed."""
        self.events = [event for event in self.events if event.instant is not None]

    def at(self, *, as_of: str | None = None, upto: str | None = None) -> Counter[Read]:
        """Return the rows as of the events requested up to `as_of`, or completed up to `upto`."""
        return self._shown(
            (path, entry)
            for (path, _), layers in self._groups(as_of, upto).items()
            for entry in layers.rows(by_event=self._by_event)
        )

    def snapshot(self) -> Counter[Read]:
        """Return the rows of the latest snapshot."""
        return self.at()

    def read_optimized(self) -> Counter[Read]:
        """Return the rows in base files."""
        return self._shown((path, entry) for (path, _), layers in self._groups().items() for entry in layers.base)

    def has(self, row: Row) -> bool:
        """Return whether the row's key is visible in its partition."""
        return any(read[:2] == (path_of(self.shape, row), key_of(self.shape, row)) for read in self.at())

    @property
    def _by_event(self) -> bool:
        return self.shape.merge == "event"

    def _change(self, apply: Callable[[Groups, str], None]) -> None:
        self.forget()
        self.events.append(Event("~", apply))

    def _groups(self, as_of: str | None = None, upto: str | None = None) -> Groups:
        groups: Groups = {}
        for event in sorted(self.events, key=lambda event: event.requested):
            if as_of is not None and event.requested > as_of:
                continue
            if upto is not None and (event.instant is None or event.instant.completion > upto):
                continue
            event.apply(groups, event.requested)
        return groups

    def _append(self, groups: Groups, rows: Iterable[Row], written: str) -> None:
        for where, of_bucket in self._by_bucket(rows).items():
            entries = [self._entry(row, written) for row in of_bucket]
            live = [entry for entry in entries if entry.row is not None]
            if where in groups:
                groups[where].logs += entries
            elif live and self.shape.new_buckets == "log":
                groups[where] = Layers(logs=entries)
            elif live:
                groups[where] = Layers(base=live)

    def _replace(self, groups: Groups, paths: set[str] | None, rows: Iterable[Row], written: str) -> None:
        for where in [where for where in groups if paths is None or where[0] in paths]:
            del groups[where]
        for where, of_bucket in self._by_bucket(rows).items():
            groups[where] = Layers(base=[self._entry(row, written) for row in of_bucket])

    def _delete(self, groups: Groups, keys: set[tuple[str, str]], *, seek: bool) -> None:
        if seek:
            for layers in groups.values():
                seen = {entry.key for entry in layers.rows(by_event=self._by_event)}
                layers.logs += [Entry(key, None, default=True) for key in sorted({key for _, key in keys} & seen)]
            return
        for path, key in sorted(keys):
            where = (path, bucket_of_key(self.shape, key))
            if where in groups:
                groups[where].logs.append(Entry(key, None, default=True))

    def _compact(self, groups: Groups, chosen: set[Where]) -> None:
        for where in chosen & groups.keys():
            groups[where] = Layers(base=groups[where].rows(by_event=self._by_event))

    def _by_bucket(self, rows: Iterable[Row]) -> Mapping[Where, list[Row]]:
        found: dict[Where, list[Row]] = {}
        for row in rows:
            where = (path_of(self.shape, row), bucket_of_key(self.shape, key_of(self.shape, row)))
            found.setdefault(where, []).append(row)
        return found

    def _entry(self, row: Row, written: str) -> Entry:
        ordering, key = row["ts"] if self._by_event else None, key_of(self.shape, row)
        if row[DELETED]:
            return Entry(key, ordering, default=ordering is None)
        return Entry(key, ordering, {**row, "written": written})

    def _shown(self, found: Iterable[tuple[str, Entry]]) -> Counter[Read]:
        shown: list[Read] = []
        for path, entry in found:
            row: Mapping[str, Any] = entry.row or {}
            shown.append((path, entry.key, row["written"], *(row[name] for name in SCHEMA.names)))
        return Counter(shown)


def bucket_of_key(shape: Shape, key: str) -> int:
    """Return the bucket of a record key."""
    fields = KEYS[shape.keys][0]
    return int(bucket_ids(pa.array([key]), key_fields=fields, hash_fields=fields, buckets=shape.buckets)[0])
