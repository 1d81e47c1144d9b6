"""Tight partition statistics: computed from the statistics of all files in the newest slices (MDT-4).

An action that only adds files widens the rows of its partitions, which gives the same result. If an action
supersedes files, the bounds may include deleted values, so the rows of these partitions are computed. This requires a
row with known bounds of the column for each live file. Otherwise, and if there are many rows, the row is widened: its
bounds are then wider than the values, never narrower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.keys import column_stats_keys
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.metadata.partitions.file_statistics import FileBounds, column_values
from lakehouse.core.metadata.partitions.protocol import MetadataCommit
from lakehouse.core.state.data_files import one_array

#: The maximum number of rows (files times columns) that a commit reads.
_MOST_ROWS = 50_000
_SUMS = ("value_count", "null_count", "size_bytes", "uncompressed_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatistics:
    """Computed statistics of partitions.

    Attributes:
        columns: By column, a table in the form of `statistics_of`, in which `name` is the partition.
        empty: Partitions in which no file is left.
    """

    columns: Mapping[str, pa.Table] = field(default_factory=dict)
    empty: tuple[str, ...] = ()


def live_statistics(
    commit: MetadataCommit, columns: Sequence[str], kinds: Mapping[str, pa.DataType], added: Sequence[FileBounds]
) -> LiveStatistics:
    """Return the statistics of the superseded partitions, except partitions whose rows must be widened.

    `added` are the bounds of the files that the action writes.
    """
    wanted = commit.change.superseded_partitions()
    live = commit.live_files(wanted) if wanted else None
    if live is None:
        return LiveStatistics()
    places = one_array(pc.binary_join_element_wise(live.column("partition"), live.column("name"), "\0"))
    is_new = _flags(pc.is_in(places, value_set=pa.array([f"{f.partition}\0{f.name}" for f in added], pa.string())))
    old = live.filter(pa.array(~is_new))
    by_place = {f"{file.partition}\0{file.name}": file for file in added}
    new = [by_place[place] for place in places.filter(pa.array(is_new)).to_pylist()]
    if (old.num_rows + len(new)) * len(columns) > _MOST_ROWS:
        return LiveStatistics()
    stored = commit.stored_ranges(columns, old) if old.num_rows else None
    if old.num_rows and stored is None:
        return LiveStatistics()
    places_of = _Places({partition: index for index, partition in enumerate(wanted)}, old, new)
    held = set(live.column("partition").to_pylist())
    return LiveStatistics(
        columns={
            column: grouped_rows(*_column_rows(column, kinds.get(column, pa.string()), stored, places_of), wanted)
            for column in columns
        },
        empty=tuple(partition for partition in wanted if partition not in held),
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """The number of each partition, its stored files and its new files."""

    number: Mapping[str, int]
    old: pa.Table
    new: Sequence[FileBounds]


def _column_rows(
    column: str, kind: pa.DataType, stored: pa.Table | None, places: _Places
) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """Return the rows of one column with their partition numbers, and whether each partition is complete."""
    number = places.number
    is_complete = np.ones(len(number), np.bool_)
    usable = [file for file in places.new if _is_known(file, column)]
    for file in places.new:
        is_complete[number[file.partition]] &= _is_known(file, column)
    values = column_values(usable, [file.name for file in usable], [column], kind, tight=True)
    parts = [part_rows(values, kind, [number[file.partition] for file in usable])]
    if stored is not None:
        old = places.old
        names = pa.repeat(pa.scalar(column), old.num_rows)
        keys = column_stats_keys(names, old.column("partition"), old.column("name"))
        partitions = np.array([number[path] for path in old.column("partition").to_pylist()], np.int64)
        at = pc.index_in(keys, value_set=one_array(stored.column("key")))
        is_complete[partitions[_flags(at.is_null())]] = False
        held, rows = partitions[_flags(at.is_valid())], stored.take(at.drop_null())
        typed = typed_statistics(rows, kind)
        for name in ("size_bytes", "uncompressed_bytes"):
            typed = typed.append_column(name, rows.column(name))
        is_complete[held[~_flags(typed.column("known"))]] = False
        parts.append(part_rows(typed, kind, held))
    return pa.concat_tables(parts), is_complete


def _is_known(file: FileBounds, column: str) -> bool:
    """Return whether the values of a new file are known; a column that a whole file lacks is null."""
    if file.bounds is None or file.is_partial:
        return False
    bounds = file.bounds.get(column)
    return bounds is None or bounds.known


def part_rows(values: pa.Table, kind: pa.DataType, partitions: Any) -> pa.Table:
    """Return bounds and counts per file, with the number of its partition, for `grouped_rows`."""
    columns = {
        "partition": pa.array(np.asarray(partitions, np.int64)),
        "min": values.column("min").cast(kind),
        "max": values.column("max").cast(kind),
        **{name: values.column(name).cast(pa.int64()).fill_null(0) for name in _SUMS},
    }
    return pa.table(columns)


def grouped_rows(rows: pa.Table, is_complete: np.ndarray[Any, Any], paths: Sequence[str]) -> pa.Table:
    """Return minimum, maximum and sums for each complete partition; NaN sorts after all numbers."""
    rows = rows.filter(pa.array(is_complete[rows.column("partition").to_numpy()]))
    partitions = np.unique(rows.column("partition").to_numpy())
    names = [paths[number] for number in partitions.tolist()]
    position = np.searchsorted(partitions, rows.column("partition").to_numpy())
    columns: dict[str, Any] = {"name": pa.array(names, pa.string())}
    for name, order in (("min", "ascending"), ("max", "descending")):
        ranked = pc.sort_indices(rows, sort_keys=[("partition", "ascending"), (name, order)])
        if name == "max" and pa.types.is_floating(rows.schema.field(name).type):
            # Arrow sorts NaN after the numbers in ascending and in descending order, so NaN gets its own sort key.
            key = pc.if_else(pc.is_nan(rows.column(name)), 1, 0)
            with_key = rows.append_column("is_nan", key)
            keys = [("partition", "ascending"), ("is_nan", "descending"), (name, order)]
            ranked = pc.sort_indices(with_key, sort_keys=keys)
        first = np.unique(position[ranked.to_numpy()], return_index=True)[1]
        columns[name] = rows.column(name).take(ranked.take(pa.array(first))).combine_chunks()
    for name in _SUMS:
        sums = np.zeros(len(names), np.int64)
        np.add.at(sums, position, rows.column(name).to_numpy())
        columns[name] = pa.array(sums)
    columns["tight"] = pa.repeat(pa.scalar(True), len(names))
    return pa.table(columns)


def _flags(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(one_array(values)).astype(np.bool_)
