"""Run statements as executors run them, in this process: a `Shuffle` on Arrow data, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.pieces import PIECES, REPORT, OfSlices, TaskDivision, ToPieces, decoded
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.table.executor_statements import by_executors
from lakehouse.core.table.statements import StatementRun

_ROWS_PER_BATCH = 3


class ArrowShuffle:
    """Pieces are Arrow tables. Tasks are pickled, as for another process, and get few pieces at a time."""

    def __init__(self) -> None:
        self.engine = LocalEngine()
        self.steps: list[str] = []
        self._read = 0

    def bytes_of(self, frame: pa.Table) -> int:
        """Return the size of a table."""
        return frame.nbytes

    def of_frame(self, frame: pa.Table, function: ToPieces) -> pa.Table:
        """Return the pieces of two partitions of a table."""
        half = frame.num_rows // 2
        parts = (frame.slice(0, half), frame.slice(half))
        return _table(batch for part in parts for batch in _copy(function)(part.to_batches(_ROWS_PER_BATCH)))

    def of_slices(self, slices: FileSlices, function: OfSlices) -> pa.Table:
        """Return the pieces of file slices, of which two tasks get a half each."""
        half = len(slices) // 2
        shares = (slices[:half], slices[half:])
        return _table(batch for share in shares for batch in _copy(function)(share))

    def by_shard(self, pieces: Sequence[pa.Table], function: ToPieces, division: TaskDivision) -> pa.Table:
        """Return the pieces that the function yields for each task."""
        self.steps.append(type(function).__name__)
        # Small rows would be one group.
        groups, tasks = max(division.groups, 7), max(division.tasks, 3)
        whole = pa.concat_tables(pieces)
        whole = whole.filter(pc.not_equal(whole.column("side"), REPORT))
        group_of = whole.column("shard").to_numpy() % groups
        whole = whole.set_column(0, "shard", pa.array(group_of, pa.int32()))
        parts = (whole.filter(pa.array(group_of % tasks == task)) for task in range(tasks))
        ordered = (part.sort_by([("shard", "ascending"), ("side", "ascending")]) for part in parts)
        return _table(batch for part in ordered for batch in _copy(function)(part.to_batches(_ROWS_PER_BATCH)))

    def of_task(self, function: Callable[[], Iterator[pa.RecordBatch]]) -> pa.Table:
        """Return the pieces that one task yields."""
        return _table(_copy(function)())

    def stored(self, pieces: Sequence[pa.Table], tasks: int) -> pa.Table:
        """Return the pieces, which are computed already."""
        return pa.concat_tables(pieces)

    def reports(self, stored: pa.Table) -> list[Any]:
        """Return the reports among the pieces."""
        data = stored.filter(pc.equal(stored.column("side"), REPORT)).column("data")
        return [pickle.loads(value) for value in data.to_pylist()]

    def run(self, pieces: pa.Table) -> None:
        """Do nothing: the pieces are computed already."""

    def of_sides(self, stored: pa.Table, sides: Sequence[int]) -> pa.Table:
        """Return the pieces of some sides."""
        return stored.filter(pc.is_in(stored.column("side"), pa.array(sides, pa.int32())))

    def rows(self, stored: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the rows of pieces."""
        tables = [decoded(data).select(schema.names) for data in stored.column("data")]
        rows = pa.concat_tables([schema.empty_table(), *tables])
        self._read = rows.num_rows
        return rows

    def rows_read(self, frame: pa.Table) -> int:
        """Return the number of rows that the write read."""
        return self._read


def _copy(function: Any) -> Any:
    return pickle.loads(pickle.dumps(function))


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), PIECES)


def use_executors(monkeypatch: pytest.MonkeyPatch) -> list[ArrowShuffle]:
    """Run all statements as executors do; return the shuffles that were used."""
    used: list[ArrowShuffle] = []

    def attempt(run: StatementRun, loaded: Any, policies: Any, call: Any) -> Any:
        used.append(ArrowShuffle())
        source, join, frame = run.source, run.statement.join, None
        if join is not None and join.pairs:
            frame = source.table if source.division is None else pa.concat_tables([part for _, part in source.parts()])
        return by_executors(run, used[-1], frame)._attempt(loaded, policies, call)

    monkeypatch.setattr(StatementRun, "_attempt", attempt)
    return used
