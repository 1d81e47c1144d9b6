"""The records that an action of few files writes to `files`, `column_stats` and `partition_stats` (MDT-4, MDT-14).

The modules in `partitions` follow the same rules on whole tables. Refused are columns of a type without
statistics, deleted rows, bounds of another type than the column, and string bounds that have to be read from files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from lakehouse.core.files.base.column_bounds import united
from lakehouse.core.format.metadata.bounds import (
    DATA,
    NULL_TYPE,
    REALS,
    V1_SCALE,
    has_statistics,
    value_type,
    wrapper_of,
)
from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, NON_PARTITIONED
from lakehouse.core.format.metadata.records import PARTITION_STATS as PARTITION_RECORD
from lakehouse.core.format.metadata.records import STATS as FILE_RECORD
from lakehouse.core.metadata.partitions.column_stats import complete_files, deleted_keys
from lakehouse.core.metadata.partitions.file_statistics import (
    COLUMN_STATS,
    FileBounds,
    absent,
    bounds_of_commit,
    columns_to_delete,
    indexed_columns,
    indexed_types,
)
from lakehouse.core.metadata.partitions.files import CLEAN, FILES
from lakehouse.core.metadata.partitions.partition_stats import PARTITION_STATS, bounds_of_column, emptied_partitions
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, Update
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.metadata.small.records import (
    Bound,
    Statistic,
    door,
    encode_file_map,
    encode_statistic,
    file_suffix,
    hash64_of,
    partition_key,
    refuse,
)
from lakehouse.model.commit import ColumnBounds

#: Maximum numbers of files, and of rows (files times columns), for which plain values are used.
FEW_FILES, FEW_ROWS = 64, 512

_NOTHING = ColumnBounds(low=None, high=None, nulls=0, values=0)


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
        (hash64_of(column), column, form_of(kinds.get(column, pa.string()), definition.version))
        for column in definition.source_fields
    ]
    entries: dict[bytes, bytes] = {}
    for file in complete_files(bounds, commit.config, definition, commit.schema):
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
        form = form_of(kinds.get(column, pa.string()), definition.version)
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
    if columns_to_delete(commit) or len(bounds) * len(definition.source_fields) > FEW_ROWS:
        refuse()
    return bounds


def _few_changes(commit: MetadataCommit, definition: Definition, added: Sequence[FileBounds]) -> FewChanges:
    """Return the input for the rows of a commit with few files.

    If rows are widened, no partition counts as superseded.
    """
    columns = definition.source_fields
    changes = FewChanges(definition=definition, kinds=indexed_types(commit.schema), added=added)
    wanted = commit.change.superseded_partitions()
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


class Form(NamedTuple):
    """How bounds of a column are stored.

    In version V1 the value type is not stored. `is_text` means that rows of nulls and rows with unknown bounds cannot
    be distinguished. `factor` is the power of ten by which decimals are multiplied, because V1 stores all of them with
    one scale.
    """

    wrapper: int
    ordinal: int | None
    info: str | None
    is_decimal: bool
    is_text: bool
    factor: int = 1


@lru_cache(maxsize=256)
def form_of(kind: pa.DataType, version: str = "V2") -> Form:
    """Return the form of a column's bounds in a version of the index."""
    typed = value_type(kind)
    if typed is None or not has_statistics(kind, version):
        refuse()
    ordinal, info = typed
    wrapper = wrapper_of(kind, version)
    is_decimal = pa.types.is_decimal(kind)
    is_text = wrapper in DATA and not is_decimal and not pa.types.is_fixed_size_binary(kind)
    if version == "V2":
        return Form(wrapper, ordinal, info, is_decimal, is_text)
    return Form(wrapper, None, None, is_decimal, is_text, 10 ** (V1_SCALE - kind.scale) if is_decimal else 1)


# parameters: the subject of the row, its bounds, and two independent properties
def statistic_of(
    name: str, column: str, bounds: ColumnBounds, form: Form, *, tight: bool, of_partition: bool
) -> Statistic:
    """Return the row of one file, or of one partition, as `statistics_of` does."""
    low, high = _bound(bounds.low, form), _bound(bounds.high, form)
    # Set the type even without bounds: Hudi merges rows that are not tight, but cannot merge rows of different types.
    is_typed = bool(low.wrapper or high.wrapper) or (of_partition and not tight)
    return Statistic(
        type=PARTITION_RECORD if of_partition else FILE_RECORD,
        name=name,
        column=column,
        low=low,
        high=high,
        value_count=bounds.values,
        null_count=bounds.nulls,
        size_bytes=bounds.size_bytes,
        raw_bytes=bounds.raw_bytes,
        tight=tight,
        type_ordinal=form.ordinal if is_typed or form.ordinal is None else NULL_TYPE,
        type_info=form.info if is_typed else None,
    )


def bounds_of(row: Statistic, form: Form) -> ColumnBounds:
    """Return the bounds of a row in physical form; `known` follows the rule of `typed_statistics` (MDT-14)."""
    if row.deleted:
        refuse()
    low, high = _physical(row.low, row, form), _physical(row.high, row, form)
    is_known = low is not None and high is not None
    if form.wrapper in REALS and is_known:
        # Hudi stores 0 for both bounds of files with NaN.
        is_known = not (low != low or high != high or (low == 0.0 and high == 0.0))
    if not is_known and low is None and high is None and not form.is_text:
        is_known = row.null_count is not None and row.null_count == row.value_count
    return ColumnBounds(
        low=low,
        high=high,
        nulls=row.null_count or 0,
        values=row.value_count or 0,
        size_bytes=row.size_bytes or 0,
        raw_bytes=row.raw_bytes or 0,
        known=is_known,
    )


def _bound(value: Any, form: Form) -> Bound:
    if value is None:
        return Bound()
    if form.is_decimal:
        # As few bytes as the two's complement of the number needs.
        value *= form.factor
        return Bound(form.wrapper, value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True))
    return Bound(form.wrapper, value.encode() if isinstance(value, str) else value)


def _physical(bound: Bound, row: Statistic, form: Form) -> Any:
    if bound.wrapper == 0:
        return None
    if bound.wrapper != form.wrapper or row.type_ordinal != form.ordinal or row.type_info != form.info:
        refuse()
    if not form.is_decimal:
        return bound.value
    number, rest = divmod(int.from_bytes(bound.value, "big", signed=True), form.factor)
    if rest:
        # The column had a larger scale when the bounds were written.
        refuse()
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class FewChanges:
    """The input for the rows of a few partitions.

    Attributes:
        definition: The definition of the statistics.
        kinds: Types by column.
        added: The files that the action writes.
        gone: Partitions whose rows are deleted.
        superseded: Partitions whose rows are recomputed, each with the names of its files after the action.
        files: The stored rows of these files, by column, partition and name.
    """

    definition: Definition
    kinds: Mapping[str, pa.DataType]
    added: Sequence[FileBounds]
    gone: Collection[str] = ()
    superseded: Mapping[str, Collection[str]] = field(default_factory=dict)
    files: Mapping[tuple[str, str, str], Statistic] = field(default_factory=dict)


def computed_rows(changes: FewChanges) -> dict[tuple[str, str], Statistic]:
    """Return the rows of the superseded partitions by (column, partition). Columns with unknown bounds are omitted."""
    new = {(file.partition, file.name): file for file in changes.added}
    rows = {}
    for column in changes.definition.source_fields:
        form = form_of(changes.kinds.get(column, pa.string()), changes.definition.version)
        for partition, names in changes.superseded.items():
            bounds = [_of_file(changes, new, column, partition, name, form) for name in names]
            usable = [of_file for of_file in bounds if of_file is not None and of_file.known]
            if names and len(usable) == len(bounds):
                total = _NOTHING
                for of_file in usable:
                    total = united(total, of_file)
                rows[column, partition] = statistic_of(partition, column, total, form, tight=True, of_partition=True)
    return rows


# parameters: one row of one file
def _of_file(
    changes: FewChanges,
    new: Mapping[tuple[str, str], FileBounds],
    column: str,
    partition: str,
    name: str,
    form: Form,
) -> ColumnBounds | None:
    """Return the bounds of a column in a file; None if it has no row, or if rows in the file lack the column."""
    file = new.get((partition, name))
    if file is None:
        row = changes.files.get((column, partition, name))
        return None if row is None else bounds_of(row, form)
    if file.bounds is None or file.is_partial:
        return None
    return file.bounds.get(column) or absent(file)


def widened_row(stored: Statistic | None, added: Statistic, form: Form) -> Statistic:
    """Return the row that replaces a partition's stored row: its bounds and counts extended by new values."""
    whole = added._replace(tight=True)
    if stored is None:
        return whole
    old, new = bounds_of(stored, form), bounds_of(added, form)
    is_doubtful = any(
        (bounds.low is None) != (bounds.high is None) or (bounds.low is None and bounds.nulls != bounds.values)
        for bounds in (old, new)
    )
    # Hudi's row for long strings looks like a row of nulls, so the bounds must be read from the files.
    if is_doubtful or (old.low is None and new.low is not None and form.wrapper in DATA):
        refuse()
    total = united(old, new)
    typed = stored if new.low is None else added
    return whole._replace(
        low=_bound(total.low, form),
        high=_bound(total.high, form),
        value_count=total.values,
        null_count=total.nulls,
        size_bytes=total.size_bytes,
        raw_bytes=total.raw_bytes,
        type_ordinal=typed.type_ordinal,
        type_info=typed.type_info,
    )


_UPDATES: Mapping[str, Callable[[MetadataCommit], Update]] = {
    FILES: _of_files,
    COLUMN_STATS: _of_columns,
    PARTITION_STATS: _of_partitions,
}
