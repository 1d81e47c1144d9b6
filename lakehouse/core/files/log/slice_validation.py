"""Read one file slice and check it against its file names, its footer and its commit.

Each value of each file is decoded once, batch by batch, within the memory budget of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader, align
from lakehouse.core.files.keys.stored_keys import KeyValues
from lakehouse.core.files.log.log_reader import SliceContext, read_entries
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.core.format.log.scan import lost_blocks
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.index.hash.places import KeyPlaces
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.planning.predicate import Range
from lakehouse.core.rows.log_entries import ColumnSets
from lakehouse.core.rows.stored_names import by_current_names
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.validation import Finding

_, _, KEY, PATH, FILE_NAME = META_COLUMNS
_KEY_RANGE = ("hoodie_min_record_key", "hoodie_max_record_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The settings for checking slices; small and picklable.

    `places` are the buckets of keys. `resizes` are the completed replacecommits: after a resize of buckets, logs with
    its name have blocks of later writes (MDT-12.5).
    """

    read: SliceContext
    layout: TableLayout
    has_keys: bool = True
    places: KeyPlaces = field(default_factory=KeyPlaces)
    resizes: frozenset[str] = frozenset()

    def misplaced(self, file: BaseFile | LogFile, keys: pa.ChunkedArray) -> int:
        """Return the number of keys that do not belong to the bucket of a file."""
        return self.places.misplaced(file, keys, self.read.keys.record_key_fields)

    @property
    def appended(self) -> bool:
        """Whether log files may have been written in version 6, so that they have blocks of several instants."""
        return self.layout.appends_to_logs or self.read.visible.upgraded

    def may_contain(self, log: LogFile, instant: str) -> bool:
        """Return whether a log may have blocks of the write `instant`."""
        if self.appended or instant in ("", log.instant):
            return True
        is_archived = log.instant < self.read.visible.archived_before
        return instant > log.instant and (is_archived or log.instant in self.resizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """One slice, with the row count (None if unknown) and the column ranges in the commit of its base file."""

    file_slice: FileSlice
    rows: int | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a slice: rows of the base file, entries of logs, and whether the base file has a bloom filter."""

    findings: tuple[Finding, ...]
    rows: int = 0
    has_bloom: bool = True


def check_slice(context: CheckContext, attempt: Attempt, task: CheckTask) -> Checked:
    """Read a slice to the end and return the findings."""
    findings: list[Finding] = []
    rows, has_bloom = 0, True
    base = task.file_slice.base
    if base is not None:
        check = _BaseCheck(context, task, base)
        findings += _findings(check.findings(), base.path, "file.readable")
        rows, has_bloom = check.rows, check.has_bloom
    for log in task.file_slice.logs:
        tally = _Count()
        findings += _findings(_check_log(context, log, tally), log.path, "log.readable")
        rows += tally.rows
    return Checked(findings=tuple(dict.fromkeys(findings)), rows=rows, has_bloom=has_bloom)


@dataclass(slots=True)
class _Count:
    rows: int = 0


def _findings(checks: Iterator[Finding], path: str, unreadable: str) -> list[Finding]:
    """Return findings; the last one explains why the file could not be read further."""
    findings: list[Finding] = []
    try:
        for finding in checks:
            findings.append(finding)
    except NotFoundError:
        findings.append(Finding(invariant="file.present", problem="the file is missing", path=path))
    except (CorruptTableError, UnsupportedError) as error:
        kind = unreadable if isinstance(error, CorruptTableError) else "unchecked"
        if isinstance(error.__cause__, pa.ArrowNotImplementedError):
            # The bytes are valid, but the stored type cannot be converted to the type in the table.
            kind = "file.schema"
        findings.append(Finding(invariant=kind, problem=error.message, path=path))
    return findings


def check_changes(storage: Storage, attempt: Attempt, log: LogFile) -> tuple[Finding, ...]:
    """Read a change log to the end and return the findings."""
    return tuple(_findings(_read_changes(storage, log), log.path, "log.readable"))


class _BaseCheck:
    """The checks of one base file. `rows` and `has_bloom` are complete after all findings were read."""

    def __init__(self, context: CheckContext, task: CheckTask, base: BaseFile) -> None:
        self.rows, self.has_bloom = 0, True
        self._context, self._task, self._base = context, task, base
        self._low: str | None = None
        self._high: str | None = None
        self._bloom: BloomFilter | None = None
        self._missed = self._elsewhere = 0
        self._nulls: dict[str, int] = {}
        self._outside: dict[str, int] = {}
        self._foreign = {PATH: 0, FILE_NAME: 0}
        self._values = KeyValues(context.read.keys, context.places.follows_paths)

    def findings(self) -> Iterator[Finding]:
        """Yield the findings about the file. Raises CorruptTableError if it is not a readable Parquet file."""
        with closing(BaseFileReader(self._context.read.storage, self._base.path)) as reader:
            self.rows = reader.rows
            if self._task.rows is not None and self._task.rows != reader.rows:
                yield self._finding(
                    "file.rows", f"the file has {reader.rows} rows, its commit states {self._task.rows}"
                )
            yield from self._open_bloom(reader)
            try:
                # Types are checked first, without rows, so that a wrong type is reported for files without rows too.
                table = self._context.read.table
                align(by_current_names(reader.schema.empty_table(), table, reader.instant), table)
                yield from self._read(reader)
            except (UserError, pa.ArrowNotImplementedError) as error:
                if isinstance(error, UnsupportedError):
                    raise
                yield self._finding("file.schema", str(error))
                return
            if self._context.has_keys:
                yield from self._check_range(reader)

    def _open_bloom(self, reader: BaseFileReader) -> Iterator[Finding]:
        text = reader.footer(BLOOM_FOOTER[0])
        self.has_bloom = text is not None or not self._context.has_keys
        if text is None:
            return
        try:
            self._bloom = BloomFilter.from_text(text, reader.footer(BLOOM_FOOTER[1]))
        except UnsupportedError as error:
            yield self._finding("unchecked", error.message)
        except CorruptTableError as error:
            yield self._finding("file.bloom", error.message)

    def _read(self, reader: BaseFileReader) -> Iterator[Finding]:
        nulls = 0
        columns = self._context.read.table
        for rows in reader.batches(columns, reader.rows_within(self._context.read.budget_bytes // 8)):
            if self._context.has_keys:
                keys = rows.column(KEY)
                nulls += keys.null_count
                self._take_keys(keys.drop_null())
                self._take_meta(rows)
                self._values.add(rows)
            self._take_ranges(rows)
        if nulls:
            yield self._finding("file.keys", f"{nulls} rows have no record key")
        yield from _mismatches(self._values, self._base)
        if self._missed:
            yield self._finding("file.bloom", f"{self._missed} keys of the file are not in its bloom filter")
        if self._elsewhere:
            yield self._finding("bucket.rows", f"{self._elsewhere} rows belong to other buckets")
        for name, count in self._foreign.items():
            if count:
                yield self._finding("file.meta_columns", f"{count} rows have a {name} other than that of the file")
        for name, count in self._outside.items():
            if count:
                yield self._finding("file.column_ranges", f"{count} values of {name!r} are outside of its range")
        for name, (_, _, stated) in self._task.ranges.items():
            if self._nulls.get(name, stated) != stated:
                problem = f"{name!r} has {self._nulls[name]} nulls, its commit states {stated}"
                yield self._finding("file.column_ranges", problem)

    def _take_keys(self, keys: pa.ChunkedArray) -> None:
        if not len(keys):
            return
        bounds = pc.min_max(keys)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self._low = low if self._low is None else min(low, self._low)
        self._high = high if self._high is None else max(high, self._high)
        if self._bloom is not None:
            self._missed += int(np.count_nonzero(~self._bloom.might_contain(keys)))
        self._elsewhere += self._context.misplaced(self._base, keys)

    def _take_meta(self, rows: pa.Table) -> None:
        for name, expected in ((PATH, self._base.partition), (FILE_NAME, self._base.name)):
            same = pc.sum(pc.equal(rows.column(name), pa.scalar(expected, pa.string()))).as_py() or 0
            self._foreign[name] += rows.num_rows - same

    def _take_ranges(self, rows: pa.Table) -> None:
        for name, (low, high, _) in self._task.ranges.items():
            if name not in rows.column_names:
                continue
            column = rows.column(name)
            try:
                bounds = pa.scalar(low, column.type), pa.scalar(high, column.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                # A range with values that the column's type cannot represent prunes no file.
                continue
            outside = pc.or_(pc.less(column, bounds[0]), pc.greater(column, bounds[1]))
            self._outside[name] = self._outside.get(name, 0) + (pc.sum(outside).as_py() or 0)
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count

    def _check_range(self, reader: BaseFileReader) -> Iterator[Finding]:
        stated = [reader.footer(name) for name in _KEY_RANGE]
        if self._low is None or self._high is None:
            return
        if stated[0] is None or stated[1] is None:
            yield self._finding("file.key_range", f"the footer lacks {' or '.join(_KEY_RANGE)}")
        elif _below(self._low, stated[0]) or _below(stated[1], self._high):
            problem = f"keys range from {self._low!r} to {self._high!r}, the footer says {stated[0]!r} to {stated[1]!r}"
            yield self._finding("file.key_range", problem)

    def _finding(self, invariant: str, problem: str) -> Finding:
        return Finding(invariant=invariant, problem=problem, path=self._base.path, instant=self._base.instant)


def _parses(schema: str) -> bool:
    try:
        avro_to_arrow(schema)
    except (LakehouseError, ValueError, KeyError, TypeError):
        return False
    return True


def _below(first: str, second: str) -> bool:
    """Return whether a key precedes another one both as Java strings and as bytes. Writers differ."""
    return first < second and first.encode("utf-16-be", "surrogatepass") < second.encode("utf-16-be", "surrogatepass")


def _check_log(context: CheckContext, log: LogFile, tally: _Count) -> Iterator[Finding]:
    """Yield the findings about a log file, after reading all of its blocks."""
    with context.read.storage.open_input(log.path) as source:
        blocks = scan_blocks(source)
    if not blocks and not context.appended:
        problem = "the log has no blocks, although its commit completed"
        yield Finding(invariant="log.readable", problem=problem, path=log.path, instant=log.instant)
    placed = [(0, block) for block in blocks]
    for _, block in lost_blocks(placed, context.read.visible.shows, appended=context.appended):
        problem = f"the block at byte {block.offset} is damaged or truncated, although its commit completed"
        yield Finding(invariant="log.readable", problem=problem, path=log.path, instant=log.instant)
    for block in blocks:
        if not context.may_contain(log, block.instant):
            problem = f"the block at byte {block.offset} is of {block.instant}"
            yield Finding(invariant="log.instant", problem=problem, path=log.path, instant=log.instant)
        elif block.schema is not None and not _parses(block.schema):
            problem = f"the schema of the block at byte {block.offset} does not parse"
            yield Finding(invariant="log.readable", problem=problem, path=log.path, instant=log.instant)
    elsewhere = nulls = 0
    values = KeyValues(context.read.keys, context.places.follows_paths)
    try:
        # Damaged files are already reported. The other files are still checked.
        read = replace(context.read, skips_damage=True)
        for entries in read_entries(read, [log], context.read.table, ColumnSets()):
            keys = entries.column(KEY)
            if context.has_keys:
                values.add(entries)
            tally.rows += len(keys)
            nulls += keys.null_count
            if log.instant not in context.resizes:
                # A delete without partition columns is copied to all buckets that replace a bucket (MDT-12.5).
                elsewhere += context.misplaced(log, keys.drop_null())
    except UserError as error:
        if isinstance(error, UnsupportedError):
            raise
        yield Finding(invariant="file.schema", problem=error.message, path=log.path, instant=log.instant)
    yield from _mismatches(values, log)
    if nulls:
        yield Finding(invariant="file.keys", problem=f"{nulls} rows have no key", path=log.path, instant=log.instant)
    if elsewhere:
        problem = f"{elsewhere} rows belong to other buckets"
        yield Finding(invariant="bucket.rows", problem=problem, path=log.path, instant=log.instant)


def _mismatches(values: KeyValues, file: BaseFile | LogFile) -> Iterator[Finding]:
    for count, what in ((values.keys, "record key"), (values.paths, "partition path")):
        if count:
            problem = f"{count} rows have a {what} that their columns do not produce: {values.example}"
            yield Finding(invariant="file.key_values", problem=problem, path=file.path, instant=file.instant)


def _read_changes(storage: Storage, log: LogFile) -> Iterator[Finding]:
    with storage.open_input(log.path) as source:
        for block in scan_blocks(source):
            problem = ""
            if block.kind is not BlockType.CDC_DATA or block.schema is None:
                problem = f"the block at byte {block.offset} holds no changes: {block.kind.name}"
            else:
                source.seek(block.offset)
                try:
                    decode_avro_rows(source.read(block.length), block.schema)
                except (LakehouseError, ValueError, KeyError, TypeError) as error:
                    problem = f"the block at byte {block.offset} cannot be read: {error}"
            if problem:
                yield Finding(invariant="log.readable", problem=problem, path=log.path, instant=log.instant)
            elif block.instant != log.instant:
                problem = f"the block at byte {block.offset} is of {block.instant}"
                yield Finding(invariant="log.instant", problem=problem, path=log.path, instant=log.instant)
