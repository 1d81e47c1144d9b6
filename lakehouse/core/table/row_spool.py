"""Record batches that wait until all rows of an input are converted: in memory, or in a temporary file.

An iterator can return more rows than fit into memory, and its columns are only known after its last row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO

import pyarrow as pa


class RowSpool:
    """Record batches of any schemas, in their order. At most `limit_bytes` are kept in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None
        self._blocks: list[tuple[int, int]] = []
        self.rows = 0

    @property
    def is_spilled(self) -> bool:
        """Whether batches are in a file."""
        return self._file is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch, and move all batches to the file if they exceed the limit."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_bytes > self._limit_bytes:
            self._spill()

    def table(self, schema: pa.Schema, fit: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.Table:
        """Return all batches as one table; for batches that are in memory."""
        return pa.Table.from_batches(map(fit, self._waiting), schema)

    def reader(self, schema: pa.Schema, fit: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return the batches as a stream that is read once; then the file is deleted.

        Args:
            schema: The schema of the stream.
            fit: Converts a batch to this schema.
        """
        return pa.RecordBatchReader.from_batches(schema, map(fit, self._batches()))

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _spill(self) -> None:
        # The file has no name, so it disappears with the process.
        self._file = self._file or tempfile.TemporaryFile(prefix="lakehouse-rows-")  # noqa: SIM115 - closed by `close`
        for batch in self._waiting:
            start = self._file.tell()
            # Each batch is a stream of its own, because later batches can have more columns.
            with pa.ipc.new_stream(pa.PythonFile(_Unclosed(self._file), "w"), batch.schema) as writer:
                writer.write_batch(batch)
            self._blocks.append((start, self._file.tell() - start))
        self._waiting, self._waiting_bytes = [], 0

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for start, size in self._blocks:
                assert self._file is not None, "blocks are in the file"
                self._file.seek(start)
                yield from pa.ipc.open_stream(self._file.read(size))
            yield from self._waiting
        finally:
            self.close()


class _Unclosed:
    """A file that stays open when Arrow closes it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush, self.tell = file.write, file.flush, file.tell

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Leave the file open."""
