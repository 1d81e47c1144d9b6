"""The records that an action of few files writes to `files`, `column_stats` and `partition_stats` (MDT-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, NON_PARTITIONED
from lakehouse.core.metadata.partitions.column_stats import complete_files, deleted_keys
from lakehouse.core.metadata.partitions.file_statistics import (
    COLUMN_STATS,
    FileBounds,
    absent,
    bounds_of_commit,
    indexed_columns,
    indexed_types,
)
from lakehouse.core.metadata.partitions.files import CLEAN, FILES
from lakehouse.core.metadata.partitions.live_statistics import superseded_partitions
from lakehouse.core.metadata.partitions.partition_stats import PARTITION_STATS, bounds_of_column, emptied_partitions
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, Update
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.metadata.small.records import (
    Statistic,
    door,
    encode_file_map,
    encode_statistic,
    file_suffix,
    hash64_of,
    partition_key,
    refuse,
)
from lakehouse.core.metadata.small.statistics import FewChanges, computed_rows, form_of, statistic_of, widened_row

#: Files of an action, and rows of files and columns, up to which plain values are used.
FEW_FILES, FEW_ROWS = 64, 512


@door
def small_update(name: str, commit: MetadataCommit) -> Update:
    """Return the update of an index partition, as `IndexPartition.update` computes it on tables.

    It is None for an action of many files, for other partitions, and for unusual records.
    """
    update = _UPDATES.get(name)
    if update is None:
        refuse()
    return update(commit)


def _of_files(commit: MetadataCommit) -> Update:
    change = commit.change
    if change.written.num_rows + change.removed.num_rows > FEW_FILES:
        refuse()
    records = dict[str, dict[str, tuple[int, bool]]]()
    for partition, name, size in zip(*(column.to_pylist() for column in change.written.columns), strict=True):
        records.setdefault(partition or NON_PARTITIONED, {})[name] = (size, False)
    touched = list(records)
    gone = [partition or NON_PARTITIONED for partition in change.removed_partitions]
    for partition, name in zip(*(column.to_pylist() for column in change.removed.columns), strict=True):
        if (partition or NON_PARTITIONED) not in gone:
            records.setdefault(partition or NON_PARTITIONED, {})[name] = (0, True)
    entries = {key.encode(): encode_file_map(files) for key, files in records.items()}
    if change.operation != CLEAN or gone:
        listed = gone if change.operation == CLEAN else touched
        names = dict.fromkeys(listed, (0, change.operation == CLEAN))
        entries[ALL_PARTITIONS.encode()] = encode_file_map(names, partitions=True)
    return Update(entries=entries, deletes=pa.array([key.encode() for key in gone], pa.binary()))


def _of_columns(commit: MetadataCommit) -> Update:
    definition = indexed_columns(commit)
    bounds = _few_bounds(commit, definition)
    kinds = indexed_types(commit.schema)
    columns = [
        (hash64_of(column), column, form_of(kinds.get(column, pa.string()))) for column in definition.source_fields
    ]
    entries: dict[bytes, bytes] = {}
    for file in complete_files(bounds, commit.config, definition):
        suffix, of_columns = file_suffix(file.partition, file.name), file.bounds or {}
        for prefix, column, form in columns:
            of_column = of_columns.get(column) or absent(file)
            row = statistic_of(file.name, column, of_column, form, tight=commit.is_building, of_partition=False)
            entries[prefix + suffix] = encode_statistic(row)
    deletes = deleted_keys(commit.change.removed, definition.source_fields)
    return Update(entries=entries, deletes=deletes, definition=definition)


def _of_partitions(commit: MetadataCommit) -> Update:
    definition = indexed_columns(commit)
    try:
        return _partition_rows(commit, definition, _few_bounds(commit, definition))
    except MetadataUnusableError:
        # The general code reads the files of the table instead.
        refuse()


def _partition_rows(commit: MetadataCommit, definition: Definition, added: Sequence[FileBounds]) -> Update:
    columns, kinds = definition.source_fields, indexed_types(commit.schema)
    gone = emptied_partitions(commit)
    rows: dict[tuple[str, str], Statistic] = {}
    if commit.is_last:
        changes = _few_changes(commit, definition, added)
        gone |= {partition for partition, names in changes.superseded.items() if not names}
        rows = computed_rows(changes)
    of_partition = dict[str, list[FileBounds]]()
    for file in added:
        if file.partition not in gone:
            of_partition.setdefault(file.partition, []).append(file)
    wide = [(column, partition) for column in columns for partition in of_partition if (column, partition) not in rows]
    keys = {place: partition_key(*place) for place in wide}
    stored = _stored(commit, PARTITION_STATS, sorted(keys.values())) if commit.is_last else {}
    for place in wide:
        column, partition = place
        form = form_of(kinds.get(column, pa.string()))
        bounds = bounds_of_column(of_partition[partition], column)
        row = statistic_of(partition, column, bounds, form, tight=False, of_partition=True)
        rows[place] = widened_row(stored.get(keys[place]), row, form) if commit.is_last else row
    deletes = [partition_key(column, partition) for column in columns for partition in sorted(gone)]
    return Update(
        entries={partition_key(*place): encode_statistic(row) for place, row in rows.items()},
        deletes=pa.array(deletes, pa.binary()),
    )


def _few_bounds(commit: MetadataCommit, definition: Definition) -> Sequence[FileBounds]:
    bounds = bounds_of_commit(commit, definition.source_fields)
    if definition.version != "V2" or len(bounds) * len(definition.source_fields) > FEW_ROWS:
        refuse()
    return bounds


def _few_changes(commit: MetadataCommit, definition: Definition, added: Sequence[FileBounds]) -> FewChanges:
    """Return the input of the rows of a commit of few files; no partition is superseded if its rows are widened."""
    columns = definition.source_fields
    changes = FewChanges(definition=definition, kinds=indexed_types(commit.schema), added=added)
    wanted = superseded_partitions(commit)
    live = commit.live_files(wanted) if wanted else None
    if live is None:
        return changes
    if live.num_rows * len(columns) > FEW_ROWS:
        refuse()
    names: dict[str, list[str]] = {partition: [] for partition in wanted}
    for partition, name in zip(*(live.column(name).to_pylist() for name in ("partition", "name")), strict=True):
        names[partition].append(name)
    new = {(file.partition, file.name) for file in added}
    old = [(path, name) for path, held in names.items() for name in held if (path, name) not in new]
    suffixes = {file: file_suffix(*file) for file in old}
    keys = {(column, *file): hash64_of(column) + suffixes[file] for column in columns for file in old}
    stored = _stored(commit, COLUMN_STATS, sorted(keys.values()))
    files = {place: stored[key] for place, key in keys.items() if key in stored}
    return replace(changes, superseded=names, files=files)


def _stored(commit: MetadataCommit, partition: str, keys: Sequence[bytes]) -> Mapping[bytes, Statistic]:
    """Return the stored rows of keys."""
    rows: Mapping[bytes, Statistic] | None = commit.reader().small_statistics(partition, keys) if keys else {}
    if rows is None:
        refuse()
    return rows


_UPDATES: Mapping[str, Callable[[MetadataCommit], Update]] = {
    FILES: _of_files,
    COLUMN_STATS: _of_columns,
    PARTITION_STATS: _of_partitions,
}
