"""Plan a scan: the file slices that a query reads after pruning, and the rest after each step (MDT-14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import root_of, type_of
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.planning.key_ranges import typed_bounds
from lakehouse.core.planning.partitions import partition_ranges
from lakehouse.core.planning.predicate import Range, check_columns
from lakehouse.core.planning.ranges import ColumnRanges, Flags, may_match
from lakehouse.core.rows.stored_names import is_evolved, statistics_name
from lakehouse.core.state.data_files import file_paths, one_array
from lakehouse.core.state.file_slices import EMPTY, FileSlices
from lakehouse.errors import UserError, nearest
from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.keys import KeyConfig
from lakehouse.model.predicate import And, In, Predicate, columns_of, statistics_condition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep(Readable):
    """One step of a plan, and the files that remain after it.

    Attributes:
        name: The name of the step, such as `partitions` or `column_stats`.
        reason: The effect of the step, or why it could not exclude anything.
        partitions: The number of partitions that remain; None before they are known.
        slices: The number of file slices that remain; None before the files are listed.
        files: The number of base and log files that remain.
        bytes: Their size.
    """

    name: str
    reason: str
    partitions: int | None = None
    slices: int | None = None
    files: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, name: str, reason: str, slices: FileSlices) -> PlanStep:
        """Return a step after which these slices remain."""
        return cls(
            name=name,
            reason=reason,
            partitions=slices.partition_count,
            slices=len(slices),
            files=slices.files.num_rows,
            bytes=slices.bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanExplanation(Readable):
    """The steps of a planned read, in order. `print` shows them as lines, a notebook shows a table."""

    steps: tuple[PlanStep, ...]

    def __iter__(self) -> Iterator[PlanStep]:
        return iter(self.steps)

    def step(self, name: str) -> PlanStep:
        """Return the step of this name; raise KeyError if the plan has none."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def __str__(self) -> str:
        heads = ("step", "partitions", "slices", "files", "bytes")
        rows = [heads, *((s.name, *_numbers(s)) for s in self.steps)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        texts = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        ]
        reasons = ["reason", *(step.reason for step in self.steps)]
        return "\n".join(f"{text}  {reason}" for text, reason in zip(texts, reasons, strict=True))

    def _shown(self) -> Shown:
        last = self.steps[-1] if self.steps else PlanStep(name="", reason="")
        line = sentence(
            f"planned in {count_text(len(self.steps), 'step')}",
            count_text(last.partitions or 0, "partition"),
            count_text(last.files or 0, "file"),
            size_text(last.bytes or 0),
        )
        rows: list[dict[str, Any]] = [
            {
                "step": s.name,
                "partitions": s.partitions,
                "slices": s.slices,
                "files": s.files,
                "bytes": s.bytes,
                "reason": s.reason,
            }
            for s in self.steps
        ]
        return Shown(line, {}, rows)


def _numbers(step: PlanStep) -> tuple[str, ...]:
    counts = (step.partitions, step.slices, step.files)
    size = "-" if step.bytes is None else size_text(step.bytes)
    return (*("-" if count is None else f"{count:,}" for count in counts), size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """A scan: slices, the columns of the result (`schema`), and the condition to apply to rows.

    `skipped` is the number of listed slices that column ranges or record keys excluded; `steps` explain the plan.
    """

    slices: FileSlices
    schema: pa.Schema
    residual: Predicate | None = None
    skipped: int = 0
    steps: tuple[PlanStep, ...] = ()

    @property
    def files(self) -> tuple[BaseFile, ...]:
        """Base files of the slices."""
        return self.slices.bases()

    def without_slices(self) -> ScanPlan:
        """Return the plan without its slices, for a task that receives its slices separately."""
        return ScanPlan(slices=EMPTY, schema=self.schema, residual=self.residual)


# parameters: a planner takes each independent part of the table state
def plan_scan(
    slices: Iterable[FileSlice],
    table: pa.Schema,
    keys: KeyConfig,
    *,
    columns: Sequence[str] | None,
    where: Predicate | None,
    ranges: Mapping[str, Mapping[str, Range]],
    commit_times: frozenset[str] | None = None,
) -> ScanPlan:
    """Return the slices that may have matching rows.

    A slice is skipped only if neither its base file nor any of its log files can have a match.

    Args:
        slices: The slices of the query.
        table: The schema of the table.
        keys: Key configuration of the table.
        columns: Columns of the result; None for all.
        where: Condition on rows.
        ranges: Column ranges by path.
        commit_times: Requested times; only rows of these instants are returned (incremental query).

    Raises:
        UserError: The table lacks a column.
    """
    full = with_meta_fields(table)
    chosen = chosen_columns(full, columns)
    columns_of_slices = FileSlices.of(slices)
    selected = columns_of_slices
    if where is not None:
        check_columns(where, full)
    pruning = statistics_condition(where)
    if pruning is not None:
        recorded = recorded_ranges(columns_of_slices.files, ranges, pruning, full)
        selected = columns_of_slices.filter(
            columns_of_slices.any_file(files_that_may_match(columns_of_slices.files, recorded, pruning, full, keys))
        )
    return ScanPlan(
        slices=selected,
        schema=chosen,
        residual=row_condition(where, commit_times),
        skipped=len(columns_of_slices) - len(selected),
    )


def chosen_columns(full: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of the result; raise UserError for a column that the table does not have."""
    if columns is None:
        return full
    if not columns:
        raise UserError("a read of no columns has no rows: name at least one column")
    for name in columns:
        if name not in full.names:
            raise UserError(
                f"column {name!r} is not in the table; columns: {', '.join(full.names)}.{nearest(name, full.names)}",
                column=name,
            )
    return pa.schema([full.field(name) for name in columns])


def row_condition(where: Predicate | None, commit_times: frozenset[str] | None) -> Predicate | None:
    """Return the condition on rows: `where`, and for an incremental query the commits that wrote them."""
    if commit_times is None:
        return where
    only = In(META_COLUMNS[0], tuple(sorted(commit_times)))
    return only if where is None else And((only, where))


def files_that_may_match(
    files: pa.Table, recorded: Mapping[str, ColumnRanges], where: Predicate, schema: pa.Schema, keys: KeyConfig
) -> Flags:
    """Return for each file whether it may have a matching row, by its column ranges and the values in its path.

    A recorded range has priority over the path, because with a global index a row may stay in its partition when its
    partition column changes.
    """
    ranges = partition_ranges(one_array(files.column("partition")), schema, keys, tuple(columns_of(where)))
    for name, of_column in recorded.items():
        ranges[name] = _first_known(of_column, ranges[name]) if name in ranges else of_column
    return may_match(where, ranges, schema, files.num_rows)


def recorded_ranges(
    files: pa.Table, ranges: Mapping[str, Mapping[str, Range]], where: Predicate, schema: pa.Schema
) -> dict[str, ColumnRanges]:
    """Convert the ranges from commits or footers, which are stored by path, to columns in the order of the files.

    Footers ignore NaN, and commits repeat the bounds of footers.
    """
    if not ranges:
        return {}
    of_files = [ranges.get(path, {}) for path in file_paths(files).to_pylist()]
    by_column = {}
    for name in dict.fromkeys(columns_of(where)):
        bounds: list[Sequence[Any]] = [
            (None, None, None) if stored is None or stored not in columns else columns[stored]
            for columns, stored in zip(of_files, _names_in_statistics(name, files, schema), strict=True)
        ]
        kind = type_of(name, schema)
        lows, highs, nulls = zip(*bounds, strict=True) if bounds else ((), (), ())
        by_column[name] = ColumnRanges(
            low=typed_bounds(lows, kind),
            high=typed_bounds(highs, kind),
            nulls=pa.array(nulls, pa.int64()),
            values=pa.nulls(len(bounds), pa.int64()),
            ignores_nan=True,
        )
    return by_column


def _names_in_statistics(name: str, files: pa.Table, schema: pa.Schema) -> Sequence[str | None]:
    """Return for each file the name by which its statistics describe a column; None if they do not."""
    field = schema.field(root_of(name, schema))
    if not is_evolved(field):
        return [name] * files.num_rows
    if field.name != name:
        return [None] * files.num_rows
    instants = files.column("instant").to_pylist()
    names = {instant: statistics_name(field, instant) for instant in set(instants)}
    return [names[instant] for instant in instants]


def _first_known(recorded: ColumnRanges, other: ColumnRanges) -> ColumnRanges:
    """Return for each file the recorded range, or the other range if none is recorded."""
    is_recorded = pc.or_(pc.is_valid(recorded.low), pc.is_valid(recorded.nulls))
    return ColumnRanges(
        low=pc.if_else(is_recorded, recorded.low, other.low),
        high=pc.if_else(is_recorded, recorded.high, other.high),
        nulls=pc.if_else(is_recorded, recorded.nulls, other.nulls),
        values=pc.if_else(is_recorded, recorded.values, other.values),
        java_order=recorded.java_order,
        ignores_nan=recorded.ignores_nan or other.ignores_nan,
    )


def unknown_files(recorded: Mapping[str, ColumnRanges], rows: int) -> Flags:
    """Return for each file whether the range of at least one column is unknown."""
    is_unknown = np.zeros(rows, bool)
    for ranges in recorded.values():
        has_range = pc.or_(pc.is_valid(ranges.low), pc.is_valid(ranges.nulls))
        is_unknown |= ~has_range.to_numpy(zero_copy_only=False).astype(bool)
    return is_unknown
