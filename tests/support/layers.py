"""A merge-on-read table with a bucket index, as a plain model: rows are appended unread, and what is stored is layers.

    {(partition path, bucket): base rows + what logs say}

Reading folds them (DATA-5.2), so what a write means depends on what is in the base file by then. Every
change is kept as an event and played again, in order of requests, for each question: a compaction takes effect where
its plan was made, but only for readers who know that it was completed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.core.index.bucket import bucket_ids
from lakehouse.model.instant import Instant
from tests.support.model import Model, Read, Row, key_of, path_of
from tests.support.naive import Entry, newer_of, record_wins
from tests.support.tables import DELETED, KEYS, SCHEMA, Shape

#: (partition path, bucket).
Where = tuple[str, int]


@dataclass(slots=True)
class Layers:
    """One file group: rows of its base file, and what its logs say since; rows know when they were written."""

    base: list[Entry] = field(default_factory=list)
    logs: list[Entry] = field(default_factory=list)

    def rows(self, *, by_event: bool) -> list[Entry]:
        """Return the rows a reader sees; of base rows with one key only the first meets the logs."""
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
    """A change; `instant` is None while it is not committed."""

    requested: str
    apply: Callable[[Groups, str], None]
    instant: Instant | None = None


@dataclass(slots=True)
class BucketLogs(Model):
    """What a merge-on-read table with a bucket index must hold."""

    events: list[Event] = field(default_factory=list)
    pending: list[Event] = field(default_factory=list)

    def upsert(self, rows: Iterable[Row]) -> None:
        """Append rows; flagged ones are deletes."""
        chosen = self.combined(rows)
        self._change(lambda groups, written: self._append(groups, chosen, written))

    def insert(self, rows: Iterable[Row]) -> None:
        """Append rows; flagged ones are left out."""
        chosen = self._inserted(rows)
        self._change(lambda groups, written: self._append(groups, chosen, written))

    def insert_overwrite(self, rows: Iterable[Row]) -> None:
        """Replace the partitions that the rows lie in."""
        chosen = self._inserted(rows)
        paths = {path_of(self.shape, row) for row in chosen}
        self._change(lambda groups, written: self._replace(groups, paths, chosen, written))

    def insert_overwrite_table(self, rows: Iterable[Row]) -> None:
        """Replace everything."""
        chosen = self._inserted(rows)
        self._change(lambda groups, written: self._replace(groups, None, chosen, written))

    def delete(self, rows: Iterable[Row], *, everywhere: bool) -> None:
        """Append deletes: to the bucket that a key's partition tells, else to those in which it is seen."""
        seek = everywhere and bool(KEYS[self.shape.keys][1])
        keys = {(path_of(self.shape, row), key_of(self.shape, row)) for row in rows}
        self._change(lambda groups, _: self._delete(groups, keys, seek=seek))

    def delete_partitions(self, paths: Iterable[str]) -> None:
        """Remove whole partitions."""
        gone = set(paths)
        self._change(lambda groups, written: self._replace(groups, gone, [], written))

    def planned(self, requested: str, groups: Iterable[Where]) -> None:
        """A compaction of these groups was planned."""
        chosen = set(groups)
        self.pending.append(Event(requested, lambda known, _: self._compact(known, chosen)))

    def carried_out(self, instant: Instant) -> None:
        """The plan of this instant was carried out."""
        for event in [event for event in self.pending if event.requested == instant.requested]:
            event.instant = instant
            self.events.append(event)
            self.pending.remove(event)

    def committed(self, instant: Instant) -> None:
        """The last change was committed."""
        self.events[-1].requested, self.events[-1].instant = instant.requested, instant

    def forget(self) -> None:
        """The last change was not committed."""
        self.events = [event for event in self.events if event.instant is not None]

    def at(self, *, as_of: str | None = None, upto: str | None = None) -> Counter[Read]:
        """Return what a reader sees who knows the events requested by `as_of`, or completed by `upto`."""
        return self._shown(
            (path, entry)
            for (path, _), layers in self._groups(as_of, upto).items()
            for entry in layers.rows(by_event=self._by_event)
        )

    def snapshot(self) -> Counter[Read]:
        """Return what a reader sees."""
        return self.at()

    def read_optimized(self) -> Counter[Read]:
        """Return what base files hold."""
        return self._shown((path, entry) for (path, _), layers in self._groups().items() for entry in layers.base)

    def has(self, row: Row) -> bool:
        """Whether the row's key is seen in its partition."""
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
