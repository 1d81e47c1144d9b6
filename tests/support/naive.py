"""Reference reader that follows the format literally: it reads whole files and merges record by record.

It has no planning, memory budget, column selection or vectors, so its result defines what a read must return (DATA-4.6,
DATA-5.2, TL-6.4). It decodes blocks with the package's codecs, which have separate golden tests.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.core.table.table import Table
from lakehouse.model.commit import Operation
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Instant
from lakehouse.model.merge import MergeMode

COMMIT_TIME, _, KEY, PATH, _ = META_COLUMNS
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry of a key: a row, or a delete if `row` is None; `default` marks a delete without ordering value."""

    key: str
    ordering: Any
    row: Row | None = None
    default: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The files of the latest slice of a file group."""

    base: BaseFile | None
    logs: tuple[LogFile, ...]


class NaiveReader:
    """Reads a table of lakehouse: all commits, those requested up to `as_of`, or those completed up to `upto`."""

    def __init__(self, table: Table, *, as_of: str | None = None, upto: str | None = None) -> None:
        self.table, self.storage = table, table.refresh().env.storage
        mode = table.config.merge_mode
        self.ordering = table.config.ordering_fields[0] if mode is MergeMode.EVENT_TIME_ORDERING else None
        self.commits = [
            (instant, metadata)
            for instant, metadata in table.commits()
            if (as_of is None or instant.requested <= as_of) and (upto is None or instant.completion <= upto)
        ]
        self.groups = self._newest()

    def snapshot(self) -> list[Row]:
        """Return the rows of the snapshot."""
        return [row for group in self.groups.values() for row in self._merged(group)]

    def read_optimized(self) -> list[Row]:
        """Return the rows of the base files."""
        return [row for group in self.groups.values() for row in self._base_rows(group)]

    def incremental(self, after: str) -> list[Row]:
        """Return the rows of the commits completed after `after`; only rows and deletes of these commits are merged."""
        changed = [(i, m) for i, m in self.commits if i.completion > after]
        instants = {instant.requested for instant, _ in changed}
        touched = {
            (stat.partition, stat.file_id)
            for _, metadata in changed
            if metadata.operation != Operation.LOG_COMPACT
            for stat in metadata.stats
        }
        return [
            row for where, group in self.groups.items() if where in touched for row in self._merged(group, instants)
        ]

    def _newest(self) -> dict[tuple[str, str], Group]:
        completed: dict[str, Instant] = {instant.requested: instant for instant, _ in self.commits}
        replaced = {(p, f) for _, metadata in self.commits for p, ids in metadata.replaced.items() for f in ids}
        bases: dict[tuple[str, str], BaseFile] = {}
        logs: dict[tuple[str, str], list[LogFile]] = {}
        for file in self._data_files():
            where = (file.partition, file.file_id)
            if file.instant not in completed or where in replaced:
                continue
            if isinstance(file, LogFile):
                logs.setdefault(where, []).append(file)
            elif where not in bases or bases[where].instant < file.instant:
                bases[where] = file
        groups = {}
        for where in sorted({*bases, *logs}):
            base = bases.get(where)
            over = [
                log for log in logs.get(where, []) if base is None or completed[log.instant].completion >= base.instant
            ]
            groups[where] = Group(base, tuple(sorted(over, key=lambda log: (log.instant, log.version))))
        return groups

    def _data_files(self) -> Iterator[BaseFile | LogFile]:
        for file in self.storage.list(""):
            partition, _, name = file.path.rpartition("/")
            found = parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
            if found is not None and not file.path.startswith(".hoodie/"):
                yield found

    def _base_rows(self, group: Group) -> list[Row]:
        if group.base is None:
            return []
        rows: list[Row] = pq.read_table(self.storage.open_input(group.base.path)).to_pylist()
        return rows

    def _merged(self, group: Group, instants: Collection[str] | None = None) -> Iterator[Row]:
        folded: dict[str, Entry] = {}
        for entry in self._entries(group, instants):
            known = folded.get(entry.key)
            folded[entry.key] = entry if known is None else newer_of(known, entry, by_event=self.ordering is not None)
        for row in self._base_rows(group):
            if instants is not None and row[COMMIT_TIME] not in instants:
                continue
            met = folded.pop(row[KEY], None)
            survivor = self._entry(row)
            if met is not None and record_wins(survivor, met, by_event=self.ordering is not None):
                survivor = met
            if survivor.row is not None:
                yield survivor.row
        yield from (entry.row for entry in folded.values() if entry.row is not None)

    def _entries(self, group: Group, instants: Collection[str] | None) -> Iterator[Entry]:
        for source, block in self._blocks(group):
            content = source[block.offset : block.offset + block.length]
            if block.kind is BlockType.DELETE:
                if instants is None or {block.instant, *block.compacted} & set(instants):
                    yield from self._deletes(content)
            else:
                assert block.kind is BlockType.PARQUET_DATA
                rows = pq.read_table(io.BytesIO(content)).to_pylist()
                yield from (self._entry(row) for row in rows if instants is None or row[COMMIT_TIME] in instants)

    def _blocks(self, group: Group) -> list[tuple[bytes, LogBlock]]:
        """Return the blocks in merge order.

        The blocks of a log compaction take the place of the last block that they replace.
        """
        blocks = [
            (data, block)
            for data in (self.storage.get(log.path) for log in group.logs)
            for block in scan_blocks(io.BytesIO(data))
        ]
        for instant, compacted in dict.fromkeys((b.instant, b.compacted) for _, b in blocks if b.compacted):
            gone = {instant, *compacted}
            ours = [(data, block) for data, block in blocks if block.instant == instant]
            last = max((n for n, (_, block) in enumerate(blocks) if block.instant in compacted), default=None)
            before = [placed for placed in blocks[:last] if placed[1].instant not in gone]
            after = [placed for placed in blocks[last or 0 :] if placed[1].instant not in gone]
            blocks = [*before, *([] if last is None else ours), *after]
        return blocks

    def _deletes(self, content: bytes) -> Iterable[Entry]:
        if self.ordering is None:
            return [Entry(key, None, default=True) for key in decode_any_deletes(content, []).keys.to_pylist()]
        found = decode_any_deletes(content, [pa.int64()])
        values = found.ordering[0].to_pylist() if found.ordering else [None] * len(found.keys)
        return [
            Entry(key, value, default=bool(default))
            for key, value, default in zip(found.keys.to_pylist(), values, found.default, strict=True)
        ]

    def _entry(self, row: Row) -> Entry:
        return Entry(row[KEY], row[self.ordering] if self.ordering else None, row)


def newer_of(old: Entry, new: Entry, *, by_event: bool) -> Entry:
    """Return the result of merging two log entries of a key (DATA-5.2, step 1)."""
    if not by_event:
        return new
    if new.row is None:
        if old.row is None and old.default:
            return old
        return old if not new.default and _above(old.ordering, new.ordering) else new
    return new if record_wins(old, new, by_event=True) else old


def record_wins(old: Entry, new: Entry, *, by_event: bool) -> bool:
    """Return whether `new` replaces `old`; on equal ordering values it does (DATA-5.2)."""
    return not by_event or old.default or new.default or not _above(old.ordering, new.ordering)


def _above(one: Any, other: Any) -> bool:
    """Return whether the ordering value `one` is greater than `other`; null is the lowest value."""
    return one is not None and (other is None or one > other)


def counted(rows: Iterable[Row], names: Iterable[str]) -> Counter[tuple[Any, ...]]:
    """Return the rows' values of some columns as a multiset; a column that a row does not have is null."""
    wanted = list(names)
    return Counter(tuple(row.get(name) for name in wanted) for row in rows)
