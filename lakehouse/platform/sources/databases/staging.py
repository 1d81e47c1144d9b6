"""Read chunks and log windows in tasks, into Parquet files of the run.

    <location>_staging/<time>-<id>/<table>-<kind>-<id>.parquet

The files contain the source rows; `lakehouse.spark.database_rows` merges them per key. A retried task attempt writes
files with new names, and only the files that the last attempt reports are read. A killed run leaves its folder; later
runs delete it when it is older than the maximum run time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse import errors
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import CorruptLogError, LakehouseError, UserError
from lakehouse.platform.sources.databases.keyless import has_keyless
from lakehouse.platform.sources.databases.server import (
    CHANGE,
    COMMITTED,
    CONTROL,
    INSERT,
    POSITION,
    UNAVAILABLE,
    Changes,
    Chunk,
    LogEnd,
    LogPosition,
    SchemaEvent,
    Seen,
    SourceTable,
    TableReads,
)
from lakehouse.platform.sources.databases.types import stored, stored_schema

log = logging.getLogger(__name__)

#: Kinds of staged files: rows of chunks, keys of the whole table, and changes.
CHUNK, KEYS, LOG = "chunk", "keys", "log"
#: Rows that were read because values were missing in changes.
FETCHED = "fetched"
_BUFFERED_ROWS = 100_000
_BUFFERED_BYTES = 64 << 20
#: Bytes of a column to compress as a test, and the compressed share from which the column stays uncompressed.
_SAMPLE_BYTES, _DENSE = 64 << 10, 0.9
_MARKS = pa.schema([(CHANGE, pa.string()), (POSITION, pa.int64()), (COMMITTED, pa.timestamp("us", "UTC"))])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A staged file of the run.

    Attributes:
        table: The source table.
        kind: `CHUNK`, `KEYS` or `LOG`.
        path: The path relative to the run's storage.
        rows: The number of rows.
        columns: The columns without `CONTROL` columns.
        unavailable: The columns for which some rows have no value.
        moved: Whether these rows include inserts, which a key change causes.
        last: The maximum position of a row; 0 without positions.
        part: The part number in the window; rows that were read for changes have the number of the next part.
        keyless: Whether rows have no key, or an empty one.
    """

    table: str
    kind: str
    path: str
    rows: int
    columns: pa.Schema
    unavailable: tuple[str, ...] = ()
    moved: bool = False
    last: int = 0
    part: int = 0
    keyless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead:
    """A chunk that a task reads; the whole table if it has no key."""

    table: SourceTable
    key: tuple[str, ...]
    chunk: Chunk
    kind: str = CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The log window that a task reads."""

    start: LogPosition
    end: LogPosition
    tables: tuple[SourceTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The results of a run's tasks.

    Attributes:
        storage: The storage of the files.
        files: The files.
        events: The statements that changed tables, in log order.
        end: The position after the last transaction that was read.
        failures: The errors of tables whose rows or changes cannot be read, by table name.
    """

    storage: Storage
    files: tuple[StagedFile, ...]
    events: tuple[SchemaEvent, ...]
    end: LogPosition
    failures: Mapping[str, LakehouseError] = field(default_factory=dict)

    def of(self, table: str, kind: str) -> tuple[StagedFile, ...]:
        """Return the files of a table."""
        return tuple(one for one in self.files if one.table == table and one.kind == kind)


@dataclass(frozen=True, slots=True)
class StagingTask:
    """Reads chunks or the log in a task. Each input row is the number of a read; the output is JSON."""

    reads: TableReads = field(repr=False)
    storage: Storage
    folder: str
    work: tuple[ChunkRead | LogRead, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.reads.connected() as reads:
            task = replace(self, reads=reads)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    report = task._report(self.work[number])
                    yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})

    def _report(self, work: ChunkRead | LogRead) -> dict[str, Any]:
        if isinstance(work, LogRead):
            return self._window(work)
        try:
            return self._chunk(work) if work.key else self._whole(work)
        except UserError as error:
            return {"files": [], "failures": [failure_report(error, work.table.name, is_of_log=False)]}

    def _chunk(self, work: ChunkRead) -> dict[str, Any]:
        table = work.table
        writer = _Writer(self.storage, self.folder, (table.name, work.kind, work.key), table.schema)
        with writer:
            for rows in self.reads.chunk(table, work.key, work.chunk):
                writer.write(pa.Table.from_batches([rows]))
        return {"files": [writer.report()]}

    def _whole(self, work: ChunkRead) -> dict[str, Any]:
        """Stage a table without a key. Its rows get negative numbers, which are never log positions."""
        table, seen, number = work.table, None, 0
        schema = table.schema.append(_MARKS.field(POSITION))
        writer = _Writer(self.storage, self.folder, (table.name, work.kind, ()), schema)
        with writer:
            for one in self.reads.whole(table):
                if isinstance(one, Seen):
                    seen = one
                    continue
                places = pa.array(np.arange(number - 1, number - 1 - one.num_rows, -1, dtype=np.int64))
                number -= one.num_rows
                writer.write(pa.Table.from_batches([one]).append_column(schema.field(POSITION), places))
        assert seen is not None, "a read of a whole table begins with the changes that it sees"
        return {"files": [writer.report()], "seen": {table.name: seen.to_mapping()}}

    def _window(self, work: LogRead) -> dict[str, Any]:
        """Stage a log window. If an event of a table cannot be applied, read the window again for the other tables."""
        failures: list[dict[str, str]] = []
        while True:
            try:
                return {**self._log(work), "failures": failures}
            except LakehouseError as error:
                names = tables_of(error, [table.name for table in work.tables])
                if not names:
                    raise
                failures += [failure_report(error, name, is_of_log=True) for name in names]
                work = replace(work, tables=tuple(table for table in work.tables if table.name not in names))

    def _log(self, work: LogRead) -> dict[str, Any]:
        """Stage a log window. A table gets a new file when its columns change."""
        files: list[dict[str, Any]] = []
        open_files: dict[str, _Writer] = {}
        keys = {table.name: table.key for table in work.tables}
        events: list[dict[str, Any]] = []
        end: LogPosition | None = None
        try:
            for one in self.reads.log(work.start, work.end, work.tables):
                if isinstance(one, LogEnd):
                    end = one.position
                elif isinstance(one, SchemaEvent):
                    events.append(asdict(one))
                else:
                    self._write_changes(one, keys[one.table], open_files, files)
        except BaseException:
            for writer in open_files.values():
                writer.abort()
            raise
        for writer in open_files.values():
            writer.close()
            files.append(writer.report())
        assert end is not None, "a read of the log ends with its end"
        return {"files": files, "events": events, "end": end.to_mapping()}

    def _write_changes(
        self, one: Changes, key: tuple[str, ...], open_files: dict[str, _Writer], files: list[dict[str, Any]]
    ) -> None:
        rows = with_marks(one, omits_unchanged=self.reads.omits_unchanged)
        writer = open_files.get(one.table)
        if writer is not None and writer.schema != stored_schema(rows.schema, key):
            writer.close()
            files.append(writer.report())
            writer = None
        if writer is None:
            writer = _Writer(self.storage, self.folder, (one.table, LOG, key), rows.schema)
            open_files[one.table] = writer
        writer.write(rows)


class _Writer:
    """Writes rows of one schema to a Parquet file, in row groups."""

    def __init__(
        self, storage: Storage, folder: str, what: tuple[str, str, tuple[str, ...]], schema: pa.Schema
    ) -> None:
        table, kind, self._key = what
        name = "".join(one if one.isalnum() or one in "._-" else "_" for one in table)
        self.path = f"{folder}/{name}-{kind}-{RandomIds().uuid()}.parquet"
        self.schema, self.rows = stored_schema(schema, self._key), 0
        self._table, self._kind = table, kind
        self._unavailable: set[str] = set()
        self._moved = self._keyless = False
        self._last = 0
        self._buffer: list[pa.Table] = []
        self._buffered_rows = self._buffered_bytes = 0
        self._output = storage.open_output(self.path)
        self._parquet: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        stored_rows = stored(rows, self._key)
        self._buffer.append(stored_rows)
        self._buffered_rows += stored_rows.num_rows
        self._buffered_bytes += stored_rows.nbytes
        self.rows += rows.num_rows
        self._keyless |= has_keyless(stored_rows, self._key)
        if POSITION in rows.column_names:
            self._last = max(self._last, pc.max(rows.column(POSITION)).as_py() or 0)
        if UNAVAILABLE in rows.column_names:
            self._unavailable |= {*pc.unique(pc.list_flatten(rows.column(UNAVAILABLE))).to_pylist()}
            lacking = pc.greater(pc.fill_null(pc.list_value_length(rows.column(UNAVAILABLE)), 0), 0)
            self._moved |= pc.any(pc.and_(lacking, pc.equal(rows.column(CHANGE), INSERT))).as_py() or False
        if self._buffered_rows >= _BUFFERED_ROWS or self._buffered_bytes >= _BUFFERED_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._parquet is None:
            self._parquet = self._opened(self.schema.empty_table())
        self._parquet.close()
        self._output.close()

    def abort(self) -> None:
        # Otherwise the writer writes the file footer when it is garbage-collected.
        if self._parquet is not None:
            self._parquet.is_open = False
        self._output.abort()

    def report(self) -> dict[str, Any]:
        names = [column for column in self.schema if column.name not in CONTROL]
        columns = pa.schema(names).serialize().to_pybytes().hex()
        return {
            "table": self._table,
            "kind": self._kind,
            "path": self.path,
            "rows": self.rows,
            "columns": columns,
            "unavailable": sorted(self._unavailable),
            "moved": self._moved,
            "last": self._last,
            "keyless": self._keyless,
        }

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _flush(self) -> None:
        if self._buffer:
            rows = pa.concat_tables(self._buffer)
            if self._parquet is None:
                self._parquet = self._opened(rows)
            self._parquet.write_table(rows)
            self._buffer, self._buffered_rows, self._buffered_bytes = [], 0, 0

    def _opened(self, rows: pa.Table) -> pq.ParquetWriter:
        """Open the file; these are its first rows."""
        # The file is read once, as a whole. Snappy and statistics would double the CPU time of writing it.
        return pq.ParquetWriter(
            self._output, self.schema, compression=_codecs(rows), use_dictionary=False, write_statistics=False
        )


def _codecs(rows: pa.Table) -> dict[str, str]:
    """Return the compression codec per column path.

    Compressing strings that do not get smaller, such as hashes, takes as long as writing the other columns.
    """
    codecs: dict[str, str] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        path = f"{name}.list.element" if pa.types.is_list(column.type) else name
        codecs[path] = "none" if _is_dense(column) else "lz4"
    return codecs


def _is_dense(column: pa.ChunkedArray) -> bool:
    """Return whether the first values of a string or binary column do not get smaller when compressed."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) or not column.num_chunks:
        return False
    data = column.chunk(0).buffers()[2]
    sample = data.slice(0, min(data.size, _SAMPLE_BYTES)) if data is not None else b""
    return len(sample) > 0 and pa.compress(sample, codec="lz4_raw").size > _DENSE * len(sample)


def with_marks(one: Changes, *, omits_unchanged: bool = False) -> pa.Table:
    """Return changes with `CONTROL` columns in their declared types.

    If the server's log omits unchanged values, the column `UNAVAILABLE` always exists, so that all rows fit into one
    file; otherwise UserError is raised for rows with missing values.
    """
    rows = one.rows
    if omits_unchanged:
        if UNAVAILABLE not in rows.column_names:
            rows = rows.append_column(UNAVAILABLE, pa.nulls(rows.num_rows, pa.list_(pa.string())))
    elif UNAVAILABLE in rows.column_names:
        lacking = pc.list_value_length(rows.column(UNAVAILABLE))
        if pc.any(pc.greater(pc.fill_null(lacking, 0), 0)).as_py():
            names = sorted(set(pc.list_flatten(rows.column(UNAVAILABLE)).to_pylist()))
            raise UserError(
                f"the log has changes of {one.table} without the values of {', '.join(names)}: a session wrote it with "
                "binlog_row_image other than FULL. Set binlog_row_image=FULL",
                tables=(one.table,),
            )
        rows = rows.drop_columns([UNAVAILABLE])
    for column in _MARKS:
        place = rows.schema.get_field_index(column.name)
        rows = rows.set_column(place, column, rows.column(place).cast(column.type))
    return rows


def parse_reports(texts: Iterable[str]) -> tuple[tuple[StagedFile, ...], tuple[SchemaEvent, ...], LogPosition | None]:
    """Return the files, events and the end that tasks report."""
    files: list[StagedFile] = []
    events: list[SchemaEvent] = []
    end = None
    for text in texts:
        report = json.loads(text)
        for one in report["files"]:
            columns = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(one["columns"])))
            files.append(StagedFile(**{**one, "columns": columns, "unavailable": tuple(one["unavailable"])}))
        events += [SchemaEvent(**one) for one in report.get("events", ())]
        if "end" in report:
            end = LogPosition.from_mapping(report["end"])
    return tuple(files), tuple(events), end


def failures_in(texts: Iterable[str]) -> dict[str, LakehouseError]:
    """Return the table errors that tasks report, by table name."""
    reports = [one for text in texts for one in json.loads(text).get("failures", ())]
    return {str(one["table"]): reported_failure(one) for one in reports}


def seen_in(texts: Iterable[str]) -> dict[str, Seen]:
    """Return the results of whole-table reads by table name."""
    reports = [json.loads(text).get("seen", {}) for text in texts]
    return {name: Seen.from_mapping(value) for report in reports for name, value in report.items()}


_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingArea:
    """The folder next to the tables with one subfolder per pass.

    Attributes:
        storage: The folder's storage.
        longest_s: The maximum duration of one run attempt, in seconds.
    """

    storage: Storage
    longest_s: int

    @contextmanager
    def folder(self, now_ms: int) -> Iterator[str]:
        """Yield the folder of a pass; at the end delete its files and the files of killed runs."""
        self._delete_old(now_ms)
        name = f"{now_ms:013d}-{RandomIds().uuid()}"
        try:
            yield name
        finally:
            self._empty(name)

    def _delete_old(self, now_ms: int) -> None:
        """Delete the folders of killed runs: folders older than the maximum duration of two attempts."""
        oldest = now_ms - max(_DAY_MS, 2_000 * self.longest_s)
        for name in self.storage.list_dir("")[1]:
            made = name.rstrip("/").partition("-")[0]
            if made.isdigit() and int(made) < oldest:
                log.info("the staged files of a killed run are deleted: %s", name)
                self._empty(name.rstrip("/"))

    def _empty(self, folder: str) -> None:
        self.storage.delete_many([file.path for file in self.storage.list(folder)])


#: Runs a task function on the numbers 0 to `count` - 1, one task each, and returns the output strings.
Runner = Callable[[Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], int], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stager:
    """Stages the records of a pass.

    Attributes:
        reads: Settings with which tasks read.
        storage: The storage of the files.
        folder: The folder of the pass.
        run: Runs tasks.
        log_end: Returns the end of the log, called when all chunks are read.
    """

    reads: TableReads = field(repr=False)
    storage: Storage
    folder: str
    run: Runner
    log_end: Callable[[], LogPosition]

    def stage(
        self,
        chunks: Sequence[ChunkRead],
        start: LogPosition,
        tables: Mapping[str, SourceTable],
        end: LogPosition | None,
    ) -> Staged:
        """Read chunks, then the log from `start` to `end`. None means the end of the log after the chunks are read."""
        files: tuple[StagedFile, ...] = ()
        failures: dict[str, LakehouseError] = {}
        if chunks:
            assert end is None, "the log must be read up to a position after the reads of chunks"
            reports = self.run(self.task(tuple(chunks)), len(chunks))
            files, _, _ = parse_reports(reports)
            failures = failures_in(reports)
            tables = {
                name: replace(one, seen=seen_in(reports).get(name, one.seen))
                for name, one in tables.items()
                if name not in failures
            }
        reached = self.log_end() if end is None else end
        work = LogRead(start=start, end=reached, tables=tuple(tables.values()))
        log_reports = self.run(self.task((work,)), 1)
        changes, events, position = parse_reports(log_reports)
        assert position is not None, "the task that reads the log reports its end"
        return Staged(
            storage=self.storage,
            files=(*files, *changes),
            events=events,
            end=position,
            failures={**failures, **failures_in(log_reports)},
        )

    def extended(self, staged: Staged, reads: Sequence[ChunkRead], tables: Mapping[str, SourceTable]) -> Staged:
        """Read rows for changes with missing values, then the log after the staged part.

        Without tables nothing is read.
        """
        part = 1 + max((one.part for one in staged.files), default=0)
        reports = self.run(self.task(tuple(reads)), len(reads))
        files, _, _ = parse_reports(reports)
        failures = {**staged.failures, **failures_in(reports)}
        if not tables:
            return replace(
                staged, files=(*staged.files, *(replace(one, part=part) for one in files)), failures=failures
            )
        more = self.stage((), staged.end, tables, self.log_end())
        return Staged(
            storage=self.storage,
            files=(*staged.files, *(replace(one, part=part) for one in (*files, *more.files))),
            events=(*staged.events, *more.events),
            end=more.end,
            failures={**failures, **more.failures},
        )

    def task(self, work: tuple[ChunkRead | LogRead, ...]) -> StagingTask:
        """Return the function that does this work in tasks."""
        return StagingTask(self.reads, self.storage, self.folder, work)


def tables_of(error: LakehouseError, names: Collection[str]) -> tuple[str, ...]:
    """Return the tables, among these names, that an error affects; empty if it affects the whole run."""
    if not isinstance(error, UserError | CorruptLogError):
        return ()
    return tuple(name for name in error.facts.get("tables", ()) if name in names)


def failure_report(error: LakehouseError, table: str, *, is_of_log: bool) -> dict[str, str]:
    """Return a table's error in the form in which a task reports it; a log error contains the remedy to skip the event.

    A table whose log contains an event that cannot be applied keeps its position, so every run reads the event again. A
    new snapshot of the table begins at the end of the log, behind the event.
    """
    message = error.message.rstrip(". ")
    if is_of_log:
        places = "; ".join(getattr(error, "__notes__", ()))
        message = (
            f"{message}{f' ({places})' if places else ''}. Then read the table again with --resnapshot {table}, which "
            "begins at the end of the log, behind this event"
        )
    return {"table": table, "kind": type(error).__name__, "message": message}


def reported_failure(report: dict[str, Any]) -> LakehouseError:
    """Return the error that a task reported."""
    kind = getattr(errors, str(report["kind"]))
    error: LakehouseError = kind(str(report["message"]), table=str(report["table"]))
    return error
