"""Write the change log that belongs to the next base file of a file group (DATA-6, DATA-4.4).

    <fileId>_<token>_<t>.parquet    the rows as of instant t
    .<fileId>_<t>.log.1_<token>.cdc    the changes since the previous file: CDC_DATA blocks of limited size

Each base file that replaces another one has a change log, without records if nothing changed. Hudi refuses to read the
changes of a commit without it. The first base file of a group needs none because all its rows are new.
"""

from __future__ import annotations

from types import TracebackType

import numpy as np
import pyarrow as pa

from lakehouse.core.files.stage.markers import TaskMarkers, mark_log
from lakehouse.core.files.stage.staging import KEY
from lakehouse.core.format.avro.encode import encode_avro_rows
from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, block_frame
from lakehouse.core.format.log.cdc import BEFORE, CDC_SUFFIX, OP, RECORD_KEY, TS, Op, cdc_avro_schema, image
from lakehouse.core.storage.protocol import OutputFile
from lakehouse.model.files import BaseFile, LogFile

_MIN_BLOCK_BYTES = 64 * 1024


class ChangeLog:
    """Log the changes of a write to the rows of `previous`; use as a context manager around the write of its successor.

    Nothing is written if the table logs no changes, or without `previous`. If the block ends normally the log is
    completed. After an exception no file exists under its name. After the block, `files` maps paths to sizes in bytes.
    """

    def __init__(self, markers: TaskMarkers, previous: BaseFile | None) -> None:
        context, attempt = markers.context, markers.attempt
        self.files: dict[str, int] = {}
        self._context, self._attempt, self._markers = context, attempt, markers
        self._previous = previous if context.cdc is not None else None
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._output: OutputFile | None = None
        self._log: LogFile | None = None
        self._written = True
        if context.cdc is not None:
            self._schema = cdc_avro_schema(context.cdc, context.avro_schema)
            self._columns = avro_to_arrow(self._schema)

    def __enter__(self) -> ChangeLog:
        if self._previous is not None:
            self._open(self._previous)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and (self._pending or not self._written):
                self._write_block()
        except BaseException as failure:
            self._close(type(failure), failure, failure.__traceback__)
            raise
        self._close(kind, error, trace)

    def merged(
        self, stored: pa.Table, position: np.ndarray, replaced: np.ndarray, dropped: np.ndarray, fresh: pa.Table
    ) -> None:
        """Log the changes to stored rows with matches: updates in the row order of `fresh`, and deletes.

        Args:
            stored: The stored rows.
            position: The row in `stored` of each match.
            replaced: Mask over the matches: rows that are updated.
            dropped: Mask over the matches: rows that are deleted.
            fresh: The new version of each updated row.
        """
        if self._previous is None:
            return
        self._add(Op.UPDATE, (stored, pa.array(position[replaced])), fresh)
        self._add(Op.DELETE, (stored, pa.array(position[dropped])), None)

    def inserted(self, rows: pa.Table) -> None:
        """Log rows that are new in the group."""
        if self._previous is not None:
            self._add(Op.INSERT, None, rows)

    def _add(self, op: Op, before: tuple[pa.Table, pa.Array] | None, after: pa.Table | None) -> None:
        """Append changes. `before` contains stored rows and the positions of the changed rows."""
        count = after.num_rows if after is not None else len(before[1]) if before is not None else 0
        if count == 0:
            return
        columns = []
        for field in self._columns:
            if field.name in (OP, TS):
                columns.append(pa.repeat(op.value if field.name == OP else self._context.instant, count))
            elif field.name == RECORD_KEY:
                columns.append(_keys(before, after))
            elif field.name == BEFORE:
                columns.append(
                    pa.nulls(count, field.type) if before is None else image(before[0], field.type, before[1])
                )
            else:
                columns.append(pa.nulls(count, field.type) if after is None else image(after, field.type))
        self._pending.append(pa.Table.from_arrays(columns, names=self._columns.names))
        self._pending_bytes += self._pending[-1].nbytes
        # Encoding needs several times the memory of the rows; together this is a small part of the budget.
        if self._pending_bytes >= max(self._context.budget.decoded_bytes // 4, _MIN_BLOCK_BYTES):
            self._write_block()

    def _write_block(self) -> None:
        if self._output is None:
            assert self._previous is not None, "a log is rolled over only if there is one"
            self._open(self._previous)
        assert self._output is not None
        empty = pa.Table.from_arrays([pa.nulls(0, f.type) for f in self._columns], names=self._columns.names)
        rows = pa.concat_tables(self._pending) if self._pending else empty
        self._pending, self._pending_bytes = [], 0
        content = encode_avro_rows(rows, self._schema)
        headers = {BlockHeader.INSTANT_TIME: self._context.instant, BlockHeader.SCHEMA: self._schema}
        before, after = block_frame(BlockType.CDC_DATA, headers, len(content))
        for piece in (before, content, after):
            self._output.write(piece)
        self._written = True
        if self._output.tell() >= self._context.max_log_bytes:
            self._close(None, None, None)

    def _open(self, previous: BaseFile) -> None:
        self._log = LogFile(
            partition=previous.partition,
            file_id=previous.file_id,
            instant=self._context.instant,
            version=1 if self._log is None else self._log.version + 1,
            write_token=self._attempt.token,
            suffix=CDC_SUFFIX,
        )
        mark_log(self._markers, self._log)
        self._output = self._context.storage.open_output(self._log.path).__enter__()
        self._written = False

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._output is None or self._log is None:
            return
        output, self._output = self._output, None
        size = output.tell()
        output.__exit__(kind, error, trace)
        if kind is None:
            self.files[self._log.path] = size


def _keys(before: tuple[pa.Table, pa.Array] | None, after: pa.Table | None) -> pa.ChunkedArray:
    if after is not None:
        return after.column(KEY)
    assert before is not None, "a change has a row before or a row after"
    return before[0].column(KEY).take(before[1])
