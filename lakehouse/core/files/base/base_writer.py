"""Write one base file: meta columns, row groups within the memory budget, footer (DATA-1, DATA-3).

Order of effects: marker, partition metadata, file under its final name. Readers see the file once its commit completes.
A task that fails leaves a marker that names the file to delete. The file is opened when its first rows are encoded, so
a task may have many more writers than a process may have open files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER
from lakehouse.core.files.base.column_bounds import RowBounds
from lakehouse.core.files.base.column_file import Chunk, ColumnFile, NewWriter, empty_footer, encoded_chunks
from lakehouse.core.files.base.file_bloom_filter import FileBloom
from lakehouse.core.files.base.parquet_footer import TOKEN, FooterSink
from lakehouse.core.files.stage.markers import TaskMarkers, base_marker
from lakehouse.core.files.stage.write_context import WriteContext, give_back
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.format.parquet.thrift_compact import Struct
from lakehouse.core.format.partition_metadata import render_partition_metadata
from lakehouse.core.planning.key_ranges import MAX_COLUMNS, json_range
from lakehouse.core.planning.predicate import Range
from lakehouse.core.rows.casting import writable
from lakehouse.core.rows.event_time import EventTimes
from lakehouse.core.rows.numbered_texts import numbered_texts
from lakehouse.core.storage.protocol import OutputFile
from lakehouse.model.commit import ColumnBounds, WriteStat
from lakehouse.model.files import BaseFile

COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME = META_COLUMNS
ONE_VALUE = (COMMIT_TIME, PARTITION_PATH, FILE_NAME)
_UNRANGED = (COMMIT_SEQNO, PARTITION_PATH, FILE_NAME)
_SAMPLE_ROWS = 4_000
_DICTIONARY_RATIO = 0.2
_CODECS = {"none": "NONE"}
#: Digits of sequence numbers that are copied from a table.
#: The columns of smaller row groups are not divided over threads.
_SHARED_BYTES = 4 << 20
# Ids of the schema and of the column orders in a Parquet footer.
_SCHEMA, _ORDERS = 2, 7


class BaseFileWriter:
    """Write the rows of a file group's new base file, batch by batch; use as a context manager.

    If the block ends normally the file is completed. After an exception no file exists under its name. Callers add the
    incoming rows to `events` themselves, because not all incoming rows are written.
    """

    def __init__(self, markers: TaskMarkers, partition: str, file_id: str, previous: BaseFile | None = None) -> None:
        context, attempt = markers.context, markers.attempt
        self.file = BaseFile(partition=partition, file_id=file_id, write_token=attempt.token, instant=context.instant)
        self.rows = 0
        self.events = EventTimes(context.event_time)
        self._context, self._attempt, self._markers, self._previous = context, attempt, markers, previous
        self._started = context.clock.monotonic_s()
        self._sequence = 0
        self._pending: list[pa.Table] = []
        self.pending_bytes = 0
        self._encoded_ratio = 0.5
        self._schema = stored_schema(context.schema)
        policy = context.policy
        self.bloom = FileBloom(policy.bloom_fpp, context.budget.hash_bytes, enabled=policy.bloom_enabled)
        self._keys: tuple[str, str] | None = None
        self._footers: list[pq.FileMetaData] = []
        self._ranges: dict[str, Range] = {}
        self.examined = RowBounds(self._schema, context.indexed or ())
        self._bounds: dict[str, ColumnBounds] | None = None
        self._writer: pq.ParquetWriter | ColumnFile | None = None
        self._new_writer: NewWriter | None = None
        self.dictionary = frozenset[str]()
        self._output: OutputFile | None = None
        self._tail: FooterSink | None = None

    def __enter__(self) -> BaseFileWriter:
        file, is_new = self.file, self._previous is None
        self._markers.mark(base_marker(self._context, self._attempt, file.partition, file.file_id, is_new=is_new))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
                self._finish()
        except BaseException as failure:
            self._end(type(failure), failure, failure.__traceback__)
            raise
        else:
            self._end(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            # The output is closed or aborted next. The writer must not try to complete the file when it is garbage-
            # collected.
            self._writer.is_open = False
        if self._output is not None:
            self._output.__exit__(kind, error, trace)

    def write_new(self, rows: pa.Table, keys: pa.ChunkedArray, *, is_stored: bool = False) -> None:
        """Append rows that this commit inserts or updates.

        `is_stored` means that the previous version contains their keys.
        """
        count = rows.num_rows
        if count == 0:
            return
        meta = self.meta_columns(count) | {RECORD_KEY: keys}
        columns = [meta[name] for name in META_COLUMNS]
        data = [rows.column(name) for name in self._context.schema.names]
        self._append(pa.table([*columns, *data], names=self._schema.names), is_stored)

    def meta_columns(self, count: int) -> dict[str, pa.Array]:
        """Return the meta columns, except the key, of rows that this commit writes; they get the next numbers."""
        prefix, first = f"{self._context.instant}_{self._attempt.partition}_", self._sequence
        self._sequence += count
        return {
            COMMIT_TIME: _constant(self._context.instant, count),
            COMMIT_SEQNO: numbered_texts(prefix, first, count),
            PARTITION_PATH: _constant(self.file.partition, count),
            FILE_NAME: _constant(self.file.name, count),
        }

    def write_kept(self, rows: pa.Table, *, is_stored: bool = True) -> None:
        """Append stored rows of `kept_schema` unchanged except for the file name (DATA-1).

        `is_stored` means that the previous version of the file has their keys.
        """
        if rows.num_rows == 0:
            return
        position = self._schema.get_field_index(FILE_NAME)
        self._append(rows.add_column(position, FILE_NAME, _constant(self.file.name, rows.num_rows)), is_stored)

    def stat(self, *, inserts: int, updates: int, deletes: int) -> WriteStat:
        """Return the write statistics of this file for the commit; call after the block."""
        previous = self._previous
        return WriteStat(
            partition=self.file.partition,
            file_id=self.file.file_id,
            path=self.file.path,
            prev_commit=previous.instant if previous else None,
            prev_base_file=previous.name if previous else None,
            num_writes=self.rows,
            num_inserts=inserts,
            num_updates=updates,
            num_deletes=deletes,
            size_bytes=self.size_bytes,
            ranges=self._ranges,
            bounds=self._bounds,
            seconds=self._context.clock.monotonic_s() - self._started,
            event_time=self.events.range,
        )

    def _append(self, rows: pa.Table, is_stored: bool) -> None:
        keys = rows.column(RECORD_KEY)
        self.rows += rows.num_rows
        self.bloom.add(keys, is_stored=is_stored)
        self.track_keys(keys)
        self._pending.append(rows)
        self.pending_bytes += rows.nbytes
        if self.pending_bytes >= min(self._context.policy.row_group_bytes, self._context.budget.encode_bytes):
            self.flush()

    def track_keys(self, keys: pa.ChunkedArray) -> None:
        """Widen the key range by keys of the file."""
        bounds = pc.min_max(keys)
        if bounds["min"].as_py() is not None:
            self.widen_keys(bounds["min"].as_py(), bounds["max"].as_py())

    def widen_keys(self, low: str, high: str) -> None:
        """Widen the key range by the range of some keys."""
        self._keys = (low, high) if self._keys is None else (min(low, self._keys[0]), max(high, self._keys[1]))

    @property
    def estimated_bytes(self) -> float:
        """The approximate size of the file if it were closed now."""
        return self._encoded_bytes + self.pending_bytes * self._encoded_ratio

    @property
    def is_open(self) -> bool:
        """Whether the file is open on storage: some of its rows are encoded."""
        return self._output is not None

    @property
    def _encoded_bytes(self) -> int:
        return 0 if self._tail is None else self._tail.tell()

    def flush(self) -> None:
        """Encode the pending rows as one row group."""
        if not self._pending:
            return
        rows = pa.concat_tables([writable(table, self._schema) for table in self._pending])
        in_memory, before = self.pending_bytes, self._encoded_bytes
        self._pending, self.pending_bytes = [], 0
        if self._writer is None:
            self._writer = self._open(rows)
        self._writer.write_table(rows.unify_dictionaries(), row_group_size=rows.num_rows)
        self.examined.add(rows)
        self._encoded_ratio = (self._encoded_bytes - before) / max(in_memory, 1)
        if in_memory >= self._context.budget.encode_bytes:
            del rows
            give_back()

    def open_copy(self, dictionary: frozenset[str]) -> None:
        """Open the file for row groups of its previous version, with the same columns encoded by a dictionary."""
        self.dictionary = dictionary
        self._new_writer = self._properties([*ONE_VALUE, *sorted(dictionary)])
        self._writer = ColumnFile(self._open_output(), self._schema, self._new_writer, self.threads)

    def copies_from(self, footer: Struct) -> bool:
        """Return whether column chunks of the file with this footer can be in this file: both have one schema."""
        own = empty_footer(self._properties(list(ONE_VALUE)), self._schema)
        return all(own.get(number) == footer.get(number) for number in (_SCHEMA, _ORDERS))

    def encode(self, rows: pa.Table) -> list[Chunk]:
        """Encode some columns for `write_group`; threads may do so concurrently."""
        assert self._new_writer is not None
        return encoded_chunks(self._new_writer, writable(rows, rows.schema))[1]

    def write_group(self, group: Struct, chunks: Sequence[Chunk]) -> None:
        """Append a row group of chunks, after `open_copy`; `group` is the entry of one with as many rows.

        Callers add its keys and its facts to `bloom`, to the key range and to `examined`.
        """
        self.flush()
        assert isinstance(self._writer, ColumnFile)
        self.rows += self._writer.write_group(group, chunks)

    @property
    def previous(self) -> BaseFile | None:
        """The previous version of the file."""
        return self._previous

    @property
    def threads(self) -> int:
        """The number of threads that the task may use."""
        return self._attempt.threads

    def _open(self, rows: pa.Table) -> pq.ParquetWriter | ColumnFile:
        new_writer, output = self._properties(_dictionary_columns(rows)), self._open_output()
        if self.threads > 1 and rows.nbytes >= _SHARED_BYTES:
            return ColumnFile(output, self._schema, new_writer, self.threads)
        return new_writer(output, self._schema, metadata_collector=self._footers)

    def _properties(self, dictionary: list[str]) -> NewWriter:
        """Return a function that opens a writer with the properties of the file."""
        encodings = {name: "DELTA_BYTE_ARRAY" for name in (COMMIT_SEQNO, RECORD_KEY) if name not in dictionary}
        # Compared with plain pages, delta encoding takes half the time to write and a fifth to read, and sorted numbers
        # become small.
        integers = [f.name for f in self._schema if _is_stored_as_integer(f.type) and f.name not in dictionary]
        encodings |= dict.fromkeys(integers, "DELTA_BINARY_PACKED")
        codec = self._context.policy.compression
        return partial(
            pq.ParquetWriter,
            compression=_CODECS.get(codec, codec),
            use_dictionary=dictionary,
            column_encoding=encodings,
            store_schema=False,
            write_statistics=True,
        )

    def _open_output(self) -> FooterSink:
        if self._previous is None:
            ensure_partition(self._context, self.file.partition)
        self._output = self._context.storage.open_output(self.file.path)
        self._tail = FooterSink(self._output.__enter__())
        return self._tail

    def _finish(self) -> None:
        if self._writer is None:
            self._writer = self._open(self._schema.empty_table())
        bloom = self.bloom.finish()
        footer = {"parquet.avro.schema": self._context.avro_schema}
        if bloom is not None:
            footer[BLOOM_FOOTER[0]] = TOKEN
        if bloom is not None and bloom.type_code:
            footer[BLOOM_FOOTER[1]] = bloom.type_code
        if self._keys is not None:
            footer["hoodie_min_record_key"], footer["hoodie_max_record_key"] = self._keys
        self._writer.add_key_value_metadata(footer)
        assert self._tail is not None
        self._tail.hold()
        written = self._writer.close()
        if written is not None:
            self._footers.append(written)
        if self.examined.nan_columns:
            self._tail.omit_bounds(self.examined.nan_columns)
        if bloom is None:
            self._tail.release()
        else:
            self._tail.release(bloom.text_bytes, bloom.text_pieces())
        self.size_bytes = self._tail.tell()
        if self._footers:
            footer = self._footers.pop()
            # Commits contain no ranges of columns that the metadata table indexes.
            self._ranges = column_ranges(footer) if self._context.indexed is None else {}
            self._bounds = None if self._context.indexed is None else self.examined.finish([footer])


def column_ranges(footer: pq.FileMetaData) -> dict[str, Range]:
    """Return min, max and null count of a file's first flat columns as JSON values, if the bounds are exact."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    ranges: dict[str, Range] = {}
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if "." in name or name in _UNRANGED or len(ranges) >= MAX_COLUMNS or not groups:
            continue
        stats = [group.column(number).statistics for group in groups]
        if any(s is None or not s.has_min_max or s.null_count is None for s in stats):
            continue
        try:
            low, high = min(s.min for s in stats), max(s.max for s in stats)
        except (OverflowError, ValueError):
            # Python cannot represent dates and times before year 1 or after 9999.
            continue
        bounds = json_range(low, high, sum(s.null_count for s in stats))
        if bounds is not None:
            ranges[name] = bounds
    return ranges


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of base files for the data columns `schema`; meta columns with few values are dictionary-
    encoded.
    """
    small = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([f.with_type(small) if f.name in ONE_VALUE else f for f in with_meta_fields(schema)])


def kept_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of stored rows that are read for the next file: `stored_schema` without the file name."""
    stored = stored_schema(schema)
    return stored.remove(stored.get_field_index(FILE_NAME))


def ensure_partition(context: WriteContext, partition: str) -> None:
    """Create the metadata file of a partition if it does not exist. Hudi does not find partitions without it."""
    if partition in context.known_partitions:
        return
    path = f"{partition}/.hoodie_partition_metadata" if partition else ".hoodie_partition_metadata"
    depth = partition.count("/") + 1 if partition else 0
    context.storage.create(path, render_partition_metadata(context.instant, depth))


def _constant(value: str, rows: int) -> pa.Array:
    indices = pa.array(np.zeros(rows, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))


def _is_stored_as_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns whose first rows repeat so often that dictionary encoding is smaller."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    chosen = list(ONE_VALUE)
    for field in sample.schema:
        if field.name in ONE_VALUE or pa.types.is_nested(field.type) or pa.types.is_boolean(field.type):
            continue
        distinct = pc.count_distinct(sample.column(field.name)).as_py()
        if sample.num_rows and distinct <= max(sample.num_rows * _DICTIONARY_RATIO, 1):
            chosen.append(field.name)
    return chosen
