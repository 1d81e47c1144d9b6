"""Sort more rows than fit into memory: write sorted runs to local disk, then merge one batch of each at a time.

rows ──► pending, sorted when full ──► run   run   run        each run is a file of batches
                                        └──────┴─────┴──► rows that are not greater than the last row in memory
                                                          of any run precede all rows that are still on disk
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakehouse.core.files.stage.write_context import give_back
from lakehouse.core.format.arrow_versions import order_nulls_first

#: Maximum number of runs that are merged together. More runs are merged in several passes.
_WAYS = 32
_MIN_BATCH_ROWS = 256
_PIECE_ROWS = 65_536


class RunSorter:
    """Sorts rows by the columns `by`, nulls first, with at most `limit_bytes` of rows in memory.

    Rows with equal values in all of these columns keep their order. The runs are written to `directory`.
    """

    def __init__(self, directory: Path, by: Sequence[str], limit_bytes: int) -> None:
        self.rows = 0
        self._directory, self._by, self._limit = directory, list(by), limit_bytes
        self._pending: list[pa.Table] = []
        self._bytes = self._made = 0
        self._runs: list[Path] = []

    def add(self, rows: pa.Table) -> None:
        """Add rows; all must have one schema."""
        if rows.num_rows == 0:
            return
        self._pending.append(rows)
        self.rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= self._limit:
            self._spill(self._in_order())

    def drain(self) -> Iterator[pa.Table]:
        """Yield all rows in order, piece by piece. Call it once."""
        if not self._runs:
            if self._pending:
                yield from self._in_order()
            return
        if self._pending:
            self._spill(self._in_order())
        while len(self._runs) > _WAYS:
            first, self._runs = self._runs[:_WAYS], self._runs[_WAYS:]
            # Insert the run at the front, because its rows were added before the rows of all other runs.
            self._runs.insert(0, self._write(self._merged(first)))
        yield from self._merged(self._runs)

    def _in_order(self) -> Iterator[pa.Table]:
        rows = one_chunk(self._pending)
        self._pending, self._bytes = [], 0
        order = self._order(rows)
        for start in range(0, rows.num_rows, _PIECE_ROWS):
            yield rows.take(order.slice(start, _PIECE_ROWS))

    def _spill(self, pieces: Iterator[pa.Table]) -> None:
        self._runs.append(self._write(pieces))
        give_back()

    def _write(self, pieces: Iterator[pa.Table]) -> Path:
        path = self._directory / f"run-{self._made}.arrows"
        self._made += 1
        writer = None
        try:
            for rows in pieces:
                if writer is None:
                    writer = pa.ipc.new_stream(str(path), rows.schema)
                # Memory share per run: one batch of each merged run is in memory, some of them twice.
                width = max(rows.nbytes / rows.num_rows, 1)
                batch = max(int(self._limit / width) // (2 * _WAYS), _MIN_BATCH_ROWS)
                writer.write_table(rows, max_chunksize=batch)
        finally:
            if writer is not None:
                writer.close()
        return path

    def _merged(self, runs: Sequence[Path]) -> Iterator[pa.Table]:
        with ExitStack() as stack:
            heads = [_Head(path, stack) for path in runs]
            while True:
                for head in heads:
                    head.refill()
                live = [head for head in heads if head.rows.num_rows]
                if not live:
                    break
                rows = one_chunk([head.rows for head in live])
                order = self._order(rows)
                ends = np.cumsum([head.rows.num_rows for head in live])
                place = np.empty(rows.num_rows, np.int64)
                place[order.to_numpy()] = np.arange(rows.num_rows)
                bounds = [place[end - 1] + 1 for head, end in zip(live, ends, strict=True) if not head.exhausted]
                count = int(min(bounds, default=rows.num_rows))
                taken = np.searchsorted(ends, order.slice(0, count).to_numpy(), side="right")
                for number, used in enumerate(np.bincount(taken, minlength=len(live)).tolist()):
                    # The rows of one run are in order, so the yielded rows are its first ones.
                    live[number].rows = live[number].rows.slice(used)
                yield rows.take(order.slice(0, count))
        for path in runs:
            path.unlink()

    def _order(self, rows: pa.Table) -> pa.Array:
        keys = {}
        for number, name in enumerate(self._by):
            column = rows.column(name)
            plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            keys[str(number)] = plain
        return order_nulls_first(pa.table(keys))


class _Head:
    """The rows of one run that are in memory."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        source = stack.enter_context(pa.OSFile(str(path)))
        self._batches = iter(stack.enter_context(pa.ipc.open_stream(source)))
        self.exhausted = False
        self.rows = pa.table({})
        self._fill = 0

    def refill(self) -> None:
        """Read the next batch if few rows are left."""
        if self.exhausted or self.rows.num_rows > self._fill // 2:
            return
        batch = next(self._batches, None)
        if batch is None:
            self.exhausted = True
            return
        self._fill = batch.num_rows
        more = pa.Table.from_batches([batch])
        self.rows = pa.concat_tables([self.rows, more]) if self.rows.num_rows else more


def one_chunk(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the tables as one table. Each column has one chunk, and one dictionary if it is dictionary-encoded."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
