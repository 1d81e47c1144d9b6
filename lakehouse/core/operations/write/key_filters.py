"""Exclude base files of a bloom index by what the metadata table says about their keys (MDT-13).

    ranges     of the record key, from `column_stats`: a file without a staged key in its range is not opened
    filters    from `bloom_filters`, of the other files: a file whose filter contains no staged key is not opened

Files about which the metadata table says nothing are searched by their footers. On a local disk the filters in the
footers are asked: a request costs less there than a filter in a compressed file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import TaskFunction
from lakehouse.core.files.base.filtered_files import FilteredFiles, filter_files, plan_filters, united
from lakehouse.core.files.base.ranged_files import RANGES, files_without_keys, plan_range_tasks
from lakehouse.core.files.keys.key_lookup import KEY
from lakehouse.core.index.protocol import IndexSetup
from lakehouse.core.index.write_tasks import StagedEntry
from lakehouse.core.metadata.read.table import BLOOM_FILTERS, MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.read.metadata_ranges import ranges_of_columns
from lakehouse.core.operations.write.attempt import WriteAttempt
from lakehouse.core.state.data_files import one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group

#: Keys that this process compares: it keeps files of the metadata table, and tasks on Spark start in about 0.1 s.
ROWS_HERE = 500_000
THREADS = 4
#: Bloom filters that this process asks.
_FILTERS_HERE = 1_000
#: With fewer files, their footers cost no more requests than their ranges.
_LEAST_FILES = 3

T = TypeVar("T")
R = TypeVar("R")


def with_excluded_files(
    attempt: WriteAttempt, setup: IndexSetup, entries: Sequence[StagedEntry], slices: FileSlices
) -> IndexSetup:
    """Return the setup with what the metadata table says about the keys of the batch, if options allow that."""
    policy = attempt.policies.index
    if not policy.bloom_metadata:
        return setup
    bases = slices.base_only()
    outside = _outside_of_ranges(attempt, entries, bases) if policy.bloom_ranges else np.zeros(len(bases), np.bool_)
    setup = replace(setup, without_keys=frozenset(_groups(bases.filter(outside)).values()))
    return setup if attempt.is_local else _with_filters(attempt, setup, entries, bases.filter(~outside))


def _outside_of_ranges(attempt: WriteAttempt, entries: Sequence[StagedEntry], bases: FileSlices) -> np.ndarray:
    """Return which base files have no staged key in the range of their keys."""
    outside = np.zeros(len(bases), np.bool_)
    if len(bases) < _LEAST_FILES:
        return outside
    found = ranges_of_columns(attempt.table, bases, [KEY], pa.schema([(KEY, pa.string())]))
    if found is None:
        return outside
    bounds, numbers = found[KEY], pa.array(np.arange(len(bases)))
    columns = [numbers, one_array(bases.files.column("partition")), bounds.low, bounds.high]
    tasks = plan_range_tasks(entries, pa.table(columns, schema=RANGES), is_global=attempt.context.layout.global_keys)
    is_small = sum(entry.rows for entry in entries) <= ROWS_HERE
    for excluded in _run(attempt, partial(files_without_keys, attempt.context), tasks, here=is_small):
        outside[excluded] = True
    return outside


def _with_filters(
    attempt: WriteAttempt, setup: IndexSetup, entries: Sequence[StagedEntry], bases: FileSlices
) -> IndexSetup:
    """Return the setup with the answers of the stored bloom filters of base files."""
    group_of = _groups(bases)
    context = attempt.context
    tasks = plan_filters(entries, list(group_of), parallelism=attempt.engine.parallelism)
    is_small = sum(entry.rows for entry in entries) <= ROWS_HERE and len(group_of) <= _FILTERS_HERE

    def ask(metadata: MetadataTable) -> list[FilteredFiles]:
        filters = metadata if is_small else metadata.task_filters()
        return _run(attempt, partial(filter_files, context, filters), tasks, here=is_small)

    found = from_metadata(attempt.table, BLOOM_FILTERS, ask)
    if found is None:
        return setup
    files = united(found)
    return replace(
        setup,
        without_keys=setup.without_keys | {group_of[file] for file in files.excluded},
        asked=frozenset(group_of[file] for file in files.asked),
    )


def _run(attempt: WriteAttempt, function: TaskFunction[T, R], tasks: Sequence[T], *, here: bool) -> list[R]:
    """Run tasks in this process or on the engine of the write."""
    return LocalEngine(THREADS).run(function, tasks) if here else attempt.engine.run(function, tasks, light=True)


def _groups(bases: FileSlices) -> dict[tuple[str, str], Group]:
    """Return the file group of each base file, by partition and name."""
    columns = (bases.files.column(name).to_pylist() for name in ("partition", "name", "file_id"))
    return {(path, name): (path, file_id) for path, name, file_id in zip(*columns, strict=True)}
