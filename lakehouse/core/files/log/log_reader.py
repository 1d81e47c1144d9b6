"""Read log files: valid blocks in processing order, as entries to merge (DATA-4.4, DATA-4.6).

Parquet and Avro data blocks are converted to the requested columns from the schema of their writer. Delete blocks
become keys.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import align, committed_file
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.delete_block import DecodeDeletes
from lakehouse.core.format.log.scan import Placed, lost_blocks, settle_blocks
from lakehouse.core.rows.keys import record_keys, required_columns
from lakehouse.core.rows.log_entries import ColumnSets, delete_entries, record_entries
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.rows.stored_names import by_current_names, stored_name, stored_names
from lakehouse.core.storage.protocol import InputFile, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.files import LogFile
from lakehouse.model.keys import KeyConfig
from lakehouse.model.merge import MergeRule, PartialMode

logger = logging.getLogger(__name__)

#: Advice to users in errors about committed files that are lost or damaged.
RECOVERY_ADVICE = (
    "Restore the file from a backup, or restore a version without it: `lakehouse restore run`. To continue without "
    "those rows, set lakehouse.damaged.files=skip for this run"
)
COMMIT_TIME, KEY = META_COLUMNS[0], META_COLUMNS[2]
OPERATION = "_hoodie_operation"
_BYTES_PER_VALUE = 24
_MIN_ROWS, _MAX_ROWS = 1_024, 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBlocks:
    """The instants whose log blocks are visible to a reader; all instants if `instants` is None.

    In table versions 8 and 9 all blocks of a log file have one instant, so a file is visible or not. In version 6 a
    log file has blocks of several instants.

    Attributes:
        instants: The completed writes that are visible to the reader.
        archived_before: Writes requested before this time are visible, too.
        copies_only: Whether only blocks are checked whose instant differs from the one in the file name. Such files are
            either named after a bucket resize, and their blocks have the instants of writes (version 8 and later), or
            they were written in version 6, before Hudi upgraded the table.
        upgraded: Whether Hudi may have upgraded the table, so that several commits may have appended to a log file.
    """

    instants: frozenset[str] | None = None
    archived_before: str = ""
    copies_only: bool = False
    upgraded: bool = False

    @property
    def appended(self) -> bool:
        """Whether several commits append to one log file."""
        return self.instants is not None and not self.copies_only

    def shows(self, instant: str) -> bool:
        """Return whether blocks of this instant are visible."""
        return self.instants is None or instant in self.instants or instant < self.archived_before


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceContext:
    """The settings for reading the slices of a table; small and picklable.

    Attributes:
        storage: The storage of the table.
        table: All columns of the table, meta columns first.
        rule: How versions of a record are merged.
        keys: How record keys are built.
        budget_bytes: The memory budget of the task.
        batch_bytes: The size of the batches of base rows that are merged with logs; 0: by the memory budget. Threads
            that share a budget set it, so that the order of the rows does not depend on their number.
        decode_deletes: Decodes the delete blocks of log files, by the version of the table.
        visible: The instants whose log blocks are read.
        commit_times: Incremental reads: only rows of these commits are merged, as in Hudi, so that a row in the
            range is visible even if an older one takes precedence. Partial rows are completed by any stored row.
        skips_damage: Whether to continue without the rows of a damaged committed log.
    """

    storage: Storage
    table: pa.Schema
    rule: MergeRule
    keys: KeyConfig
    budget_bytes: int
    decode_deletes: DecodeDeletes
    visible: VisibleBlocks = VisibleBlocks()
    commit_times: frozenset[str] | None = None
    skips_damage: bool = False
    batch_bytes: int = 0

    @property
    def mixes_versions(self) -> bool:
        """Whether a merged row may have values of several versions."""
        return self.rule.partial is not PartialMode.NONE or self.rule.merger is not None

    def of_range(self, commit_times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the mask of rows whose commit is one of `commit_times`."""
        plain = commit_times.cast(pa.string())
        return pc.is_in(plain, value_set=pa.array(sorted(self.commit_times or ()), pa.string()))

    def merging(self, columns: pa.Schema) -> pa.Schema:
        """Return `columns` and the columns that merging needs: keys, ordering columns, delete columns.

        A custom merger needs all columns.
        """
        if self.rule.needs_all_columns:
            return self.table
        wanted = {KEY, *self.rule.columns(), DELETED_COLUMN, OPERATION, *columns.names}
        if self.commit_times is not None:
            wanted.add(COMMIT_TIME)
        return pa.schema([field for field in self.table if field.name in wanted])


def read_entries(
    context: SliceContext,
    logs: Sequence[LogFile],
    columns: pa.Schema,
    sets: ColumnSets,
    seen: list[LogBlock] | None = None,
) -> Iterator[pa.Table]:
    """Yield the contents of a slice's log files, oldest first, as entries of `columns` (see `rows.log_entries`).

    Args:
        context: The settings for reading.
        logs: The log files of the slice.
        columns: The columns of the entries.
        sets: Collects the sets of columns that partial rows provide.
        seen: Receives the valid blocks and the skipped damaged blocks, before the first entries are yielded.

    Raises:
        CorruptTableError: A block does not decode, or a committed log is damaged and `context.skips_damage` is false.
        UnsupportedError: A block of a kind that data tables do not have.
    """
    with ExitStack() as stack:
        sources = []
        for log in logs:
            with committed_file(context.storage.root, log.path):
                sources.append(stack.enter_context(context.storage.open_input(log.path)))
        if not context.skips_damage:
            _require_sizes(context, logs, sources)
        counting, lost = _settled(context, logs, sources)
        if seen is not None:
            seen.extend(block for _, block in (*counting, *lost))
        partial = context.mixes_versions or any(block.is_partial for _, block in counting)
        only = None if partial else context.commit_times
        for number, block in counting:
            is_delete = block.kind is BlockType.DELETE
            if only is not None and is_delete and not only & {block.instant, *block.compacted}:
                continue
            with _readable(context, logs[number], block):
                for entries in _decode(context, sources[number], block, columns, sets):
                    is_filtered = only is not None and not is_delete
                    yield entries.filter(context.of_range(entries.column(COMMIT_TIME))) if is_filtered else entries


def _settled(
    context: SliceContext, logs: Sequence[LogFile], sources: Sequence[InputFile]
) -> tuple[list[Placed], list[Placed]]:
    """Return the blocks that readers merge, oldest first, and the damaged blocks that are skipped."""
    blocks = [
        (number, block) for number, source in enumerate(sources) for block in _blocks(context, logs[number], source)
    ]
    shows: Callable[[str], bool] = context.visible.shows
    if context.visible.copies_only:
        blocks, shows = [placed for placed in blocks if _shown(context, logs, placed)], _everything
    lost = lost_blocks(blocks, shows, appended=context.visible.appended)
    if lost and context.visible.upgraded:
        lost = _without_failed_appends(context, logs, blocks, lost)
    if lost and not context.skips_damage:
        raise _damaged(context, logs, lost[0])
    for number, block in lost:
        logger.warning(
            "%s/%s: the damaged block near byte %d is skipped",
            context.storage.root,
            logs[number].path,
            block.offset,
        )
    return settle_blocks(blocks, shows), lost


@contextmanager
def _readable(context: SliceContext, log: LogFile, block: LogBlock) -> Iterator[None]:
    """Raise CorruptTableError with the position of a block if its content does not decode."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise CorruptTableError(
            f"{context.storage.root}/{log.path}: the {block.kind.name} block of {block.instant} at byte "
            f"{block.offset} cannot be read: {error}",
            path=log.path,
        ) from error


def _shown(context: SliceContext, logs: Sequence[LogFile], placed: Placed) -> bool:
    number, block = placed
    # A rollback command has the instant of the rollback, which is not a write.
    is_checked = block.kind not in (BlockType.CORRUPT, BlockType.COMMAND) and block.instant != logs[number].instant
    return not is_checked or context.visible.shows(block.instant)


def _without_failed_appends(
    context: SliceContext, logs: Sequence[LogFile], blocks: Sequence[Placed], lost: Sequence[Placed]
) -> list[Placed]:
    """If there are log files of version 6, return only the corrupt blocks that are lost data.

    A log file that has blocks of another instant than that in its name was written in version 6.
    """
    appended = {number for number, block in blocks if {block.instant, block.writer} - {"", logs[number].instant}}
    committed = lost_blocks(blocks, context.visible.shows, appended=True)
    return [placed for placed in lost if placed[0] not in appended or placed in committed]


def _everything(_instant: str) -> bool:
    return True


def _require_sizes(context: SliceContext, logs: Sequence[LogFile], sources: Sequence[InputFile]) -> None:
    """Raise CorruptTableError for an empty log, or one whose size differs from its listing or its commit.

    Logs of version 6 grow by appends. A failed append may leave one without blocks; an upgrade of the table keeps it.
    """
    grows = context.visible.appended
    may_be_empty = grows or context.visible.upgraded
    for log, source in zip(logs, sources, strict=True):
        size = source.size()
        is_lost = (not size and not may_be_empty) or (not grows and log.size_bytes not in (0, size))
        if size < log.size_bytes or is_lost:
            expected = f"{log.size_bytes} bytes" if log.size_bytes else "log blocks"
            raise CorruptTableError(
                f"{context.storage.root}/{log.path} has {size} bytes, expected {expected}: rows that were committed "
                f"are lost. {RECOVERY_ADVICE}",
                path=log.path,
                expected=log.size_bytes,
                found=size,
            )


def _damaged(context: SliceContext, logs: Sequence[LogFile], lost: Placed) -> CorruptTableError:
    number, block = lost
    path = logs[number].path
    return CorruptTableError(
        f"{context.storage.root}/{path}: the log block near byte {block.offset} is damaged ({block.length} bytes are "
        f"not a complete block): rows that were committed are lost. {RECOVERY_ADVICE}",
        path=path,
        position=block.offset,
    )


def _blocks(context: SliceContext, log: LogFile, source: InputFile) -> list[LogBlock]:
    try:
        return scan_blocks(source)
    except CorruptTableError as error:
        raise CorruptTableError(f"{context.storage.root}/{log.path}: {error.message}", **error.facts) from error


def _decode(
    context: SliceContext, source: InputFile, block: LogBlock, columns: pa.Schema, sets: ColumnSets
) -> Iterator[pa.Table]:
    if block.kind is BlockType.DELETE:
        types = [columns.field(name).type for name in context.rule.compared if name in columns.names]
        deleted = context.decode_deletes(_content(source, block), types)
        if len(deleted.keys):
            yield delete_entries(deleted.keys, deleted.ordering, deleted.default, columns, context.rule)
        return
    wanted = _wanted_columns(context, columns)
    stored = list(stored_names(wanted, block.instant).values())
    for rows in _data_rows(source, block, stored, _rows_within(context, stored)):
        partial = None
        aligned = align(_with_keys(context, by_current_names(rows, wanted, block.instant)), columns)
        if block.is_partial:
            assert block.schema is not None, "a partial block without schema was refused by the scan"
            written = frozenset(avro_to_arrow(block.schema).names)
            partial = frozenset(field.name for field in columns if stored_name(field, block.instant) in written)
        yield record_entries(aligned, context.rule, sets.number(partial), table=context.table)


def _data_rows(source: InputFile, block: LogBlock, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
    if block.kind is BlockType.PARQUET_DATA:
        with pq.ParquetFile(_view(source, block), pre_buffer=False) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=rows, columns=present, use_threads=False):
                yield pa.Table.from_batches([batch])
        return
    if block.kind is BlockType.AVRO_DATA:
        if block.schema is None:
            raise CorruptTableError(f"an AVRO_DATA block of {block.instant} has no schema")
        present = [name for name in avro_to_arrow(block.schema).names if name in columns]
        yield decode_avro_rows(_content(source, block), block.schema, present)
        return
    raise UnsupportedError(f"log blocks of kind {block.kind.name} are not supported in a data table")


def _wanted_columns(context: SliceContext, columns: pa.Schema) -> pa.Schema:
    """Return the columns to read from a data block: the requested ones, and the key columns if it has no keys."""
    of_keys = [name for name in required_columns(context.keys) if name in context.table.names]
    return pa.schema([*columns, *(context.table.field(name) for name in of_keys if name not in columns.names)])


def _with_keys(context: SliceContext, rows: pa.Table) -> pa.Table:
    """Return the rows with their record keys. Keys that are not stored (virtual keys) are computed."""
    if KEY in rows.column_names and not rows.column(KEY).null_count:
        return rows
    made = pc.cast(record_keys(rows, context.keys), pa.string())
    rest = rows.drop_columns([KEY]) if KEY in rows.column_names else rows
    return rest.append_column(KEY, made)


def _rows_within(context: SliceContext, columns: Sequence[str]) -> int:
    return min(max(context.budget_bytes // 16 // (max(len(columns), 1) * _BYTES_PER_VALUE), _MIN_ROWS), _MAX_ROWS)


def _content(source: InputFile, block: LogBlock) -> bytes:
    source.seek(block.offset)
    return source.read(block.length)


def _view(source: InputFile, block: LogBlock) -> pa.BufferReader | _Range:
    """Return the content of a block as a file, without a copy if the storage maps files, otherwise range by range."""
    if isinstance(source, pa.NativeFile):
        source.seek(block.offset)
        return pa.BufferReader(source.read_buffer(block.length))
    return _Range(source, block.offset, block.length)


class _Range(io.RawIOBase):
    """A read-only file that is a range of another one."""

    def __init__(self, source: InputFile, offset: int, length: int) -> None:
        self._source, self._offset, self._length, self._position = source, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = start + position
        return self._position

    def read(self, nbytes: int | None = -1, /) -> bytes:
        left = max(self._length - self._position, 0)
        wanted = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        self._source.seek(self._offset + self._position)
        data = self._source.read(wanted)
        self._position += len(data)
        return data
