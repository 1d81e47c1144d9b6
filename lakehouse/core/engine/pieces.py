"""Rows that tasks exchange through an engine's shuffle as encoded pieces, without a conversion to the engine's types.

A piece has rows from one task for one shard. It travels as a row of three columns:

    shard   the shard to which all rows of the piece belong
    side    the kind of rows, such as source or table; a task gets the pieces of a shard ordered by side
    data    an Arrow stream; for REPORT a pickled value for the driver, which belongs to no shard
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.files import FileSlice

PIECES = pa.schema([("shard", pa.int32()), ("side", pa.int32()), ("data", pa.binary())])
#: The side of a value for the driver.
REPORT = -1
#: The maximum number of pieces per batch, and about the maximum bytes of one piece.
PIECES_PER_BATCH, PIECE_BYTES = 64, 1 << 20

Batches = Iterable[pa.RecordBatch]
#: Function that takes batches with rows or pieces, and yields batches with pieces.
ToPieces = Callable[[Batches], Iterator[pa.RecordBatch]]
#: Function that takes some file slices, and yields batches of pieces.
OfSlices = Callable[[Iterable[FileSlice]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDivision:
    """The number of tasks, and the number of groups into which shards are united; a task has one group at a time."""

    tasks: int
    groups: int


class Shuffle(Protocol):
    """Divides pieces among the tasks of an engine. `Any` stands for the engine's type of frames with pieces."""

    @property
    def engine(self) -> Engine:
        """The engine that writes a result of `rows`."""
        ...

    def bytes_of(self, frame: Any) -> int:
        """Return the engine's estimate for the size of a frame; a huge number if it has none."""
        ...

    def of_frame(self, frame: Any, function: ToPieces) -> Any:
        """Return the pieces that `function` yields for each partition of a frame."""
        ...

    def of_slices(self, slices: FileSlices, function: OfSlices) -> Any:
        """Return the pieces that `function` yields for the file slices of each task."""
        ...

    def by_shard(self, pieces: Sequence[Any], function: ToPieces, division: TaskDivision) -> Any:
        """Return the pieces that `function` yields for the pieces of each group, in the order of groups and sides.

        Each piece that a function gets has the number of its group as its shard. Reports are left out.
        """
        ...

    def of_task(self, function: Callable[[], Iterator[pa.RecordBatch]]) -> Any:
        """Return the pieces that one task yields."""
        ...

    def stored(self, pieces: Sequence[Any], tasks: int) -> Any:
        """Return all pieces together, even stored ones.

        They are computed once, by this call or by their first use, and then read by all uses.
        """
        ...

    def reports(self, stored: Any) -> list[Any]:
        """Return the reports among pieces that are stored."""
        ...

    def run(self, pieces: Any) -> None:
        """Compute pieces, for the errors that the tasks raise."""
        ...

    def of_sides(self, stored: Any, sides: Sequence[int]) -> Any:
        """Return the pieces of some sides."""
        ...

    def rows(self, stored: Any, schema: pa.Schema) -> Any:
        """Return the rows in the pieces as a frame of `engine` with the columns of a schema."""
        ...

    def rows_read(self, frame: Any) -> int:
        """Return how many rows the last exchange read from a result of `rows`."""
        ...


def pieces_of(rows: pa.Table, shards: np.ndarray, side: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows as pieces; `shards` has the shard of each row."""
    if not rows.num_rows:
        return
    order = np.argsort(shards, kind="stable")
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    numbers, starts = np.unique(shards[order], return_index=True)
    most_rows = max(PIECE_BYTES * rows.num_rows // max(rows.nbytes, 1), 1)
    pending: list[tuple[int, bytes]] = []
    for number, start, end in zip(numbers.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        for first in range(start, end, most_rows):
            pending.append((number, _encoded(sorted_rows.slice(first, min(most_rows, end - first)))))
            if len(pending) == PIECES_PER_BATCH:
                yield _batch(pending, side)
                pending = []
    if pending:
        yield _batch(pending, side)


def report_piece(value: Any) -> pa.RecordBatch:
    """Return a value for the driver as a piece."""
    return _batch([(REPORT, pickle.dumps(value))], REPORT)


def shards_of(batches: Batches) -> Iterator[tuple[int, Iterator[tuple[int, pa.Table]]]]:
    """Yield each shard or group with its decoded pieces and their sides; use the pieces before the next one."""
    for shard, group in groupby(_pieces(batches), itemgetter(0)):
        yield shard, ((side, decoded(data)) for _, side, data in group)


def decoded(data: pa.BinaryScalar) -> pa.Table:
    """Return the rows of a piece."""
    return pa.ipc.open_stream(data.as_buffer()).read_all()


def collected(batches: Batches, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of about `most_bytes`."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _pieces(batches: Batches) -> Iterator[tuple[int, int, pa.BinaryScalar]]:
    for batch in batches:
        shards, sides, data = batch.columns
        yield from zip(shards.to_pylist(), sides.to_pylist(), data, strict=True)


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _batch(pieces: Sequence[tuple[int, bytes]], side: int) -> pa.RecordBatch:
    shards = pa.array([shard for shard, _ in pieces], pa.int32())
    sides = pa.array(np.full(len(pieces), side, np.int32))
    data = pa.array([data for _, data in pieces], pa.binary())
    return pa.RecordBatch.from_arrays([shards, sides, data], schema=PIECES)
