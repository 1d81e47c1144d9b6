"""The index partitions `secondary_index_<name>`: the record keys for each value of a column (MDT-4).

    key    escaped value $ escaped record key
    value  the same for all entries: the entry is not deleted

The record index maps a record key to its file group, so a secondary index needs a record index. Surplus entries are
harmless, because a reader checks the value of each row. A missing entry would hide a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.keys.changed_keys import ChangedKeysFile, changed_keys_of
from lakehouse.core.files.keys.secondary_keys import (
    CHANGED,
    IndexedColumn,
    IndexedGroup,
    find_changed_values,
    keys_of_slice,
    text_refusal,
)
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.format.metadata.groups import estimated_groups, metadata_file_id, secondary_shards
from lakehouse.core.format.metadata.records import SECONDARY_ROWS, encode_secondary
from lakehouse.core.metadata.key_changes import valued_groups
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.metadata.staged import LogStage, Run, StagedLog, StagedRecordsError, StagedUpdate, Staging
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import REWRITES
from lakehouse.model.indexing import IDENTITY, SECONDARY_INDEX
from lakehouse.model.partition_kind import PartitionKind, index_name
from lakehouse.spec.options.policies import Policies

#: Number of table file groups per task that compares values.
_GROUPS_AT_ONCE = 8
_THREADS = 4
#: Bounds for the number of file groups, as in Hudi, and the minimum bytes per row.
_MIN_GROUPS, _MAX_GROUPS, _ROW_BYTES = 10, 10_000, 32


class SecondaryIndexPartition:
    """The record keys for each value of one column."""

    kind = PartitionKind.SECONDARY_INDEX

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        """Return why the index cannot be maintained: its definition, or a table without stored record keys."""
        if definition is None:
            return "the table has no definition of it"
        if definition.index_type != SECONDARY_INDEX or len(definition.source_fields) != 1:
            return f"its definition has the type {definition.index_type!r} and {len(definition.source_fields)} columns"
        if definition.function not in ("", IDENTITY):
            return f"its function {definition.function!r} is not {IDENTITY!r}"
        return None if config.populate_meta_fields else "the table stores no record keys"

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        """Return no partition: a secondary index needs the columns of the table, so the service builds it."""
        return ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        """Return the definition that the user declared."""
        return table.definitions.get(name)

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        """Return the file groups, as many as Hudi would create for the table's maximum number of rows."""
        rows = (pc.sum(table.newest.column("size_bytes")).as_py() or 0) // _ROW_BYTES
        count = estimated_groups(rows, minimum=_MIN_GROUPS, maximum=_MAX_GROUPS)
        return tuple(metadata_file_id(name, shard) for shard in range(count))

    def build(self, name: str, table: TableFiles) -> pa.Table:
        """Return an entry for each row of the newest slices. Writes no task files, because validation uses this."""
        if table.read is None:
            return _encoded(pa.array([], pa.string()))
        column = _column(table.definitions[name], table.read, "", 1)
        engine = table.engine or LocalEngine(_THREADS)
        keys = engine.run(partial(keys_of_slice, column), list(table.slices))
        return _encoded(pc.unique(pa.chunked_array([*keys, pa.array([], pa.string())])))

    def build_groups(self, name: str, table: TableFiles, groups: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield file groups with their records. Tasks first partition keys into files, so one group is in memory."""
        if table.read is None:
            return
        directory = f".hoodie/.staging/{table.instant}/{name}"
        column = _column(table.definitions[name], table.read, directory, len(groups))
        engine = table.engine or LocalEngine(_THREADS)
        files = _found_keys(column, [IndexedGroup(after=piece) for piece in table.slices], engine.run)
        try:
            for number, file_id in enumerate(groups):
                keys = changed_keys_of(table.env.storage, files, number, CHANGED).column("key")
                if len(keys):
                    yield file_id, _encoded(pc.unique(keys))
        finally:
            delete_leftovers(table.env.storage, [file.path for file in files])

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the records that tasks staged.

        Raises StagedRecordsError if they are missing because the index was declared after the write began, or if they
        were staged for a different definition.
        """
        change, definition = commit.change, commit.definitions[name]
        if change.operation in REWRITES or not (change.stats or change.replaced.num_rows):
            return Update()
        staged = change.staged.get(name)
        if staged is None or (staged.groups, staged.source) != (commit.groups[name], _source(definition)):
            raise StagedRecordsError(
                f"{commit.env.storage.root}: the index {name} was created or changed while {commit.instant} was "
                "written; run the operation again",
                instant=commit.instant,
            )
        return Update(staged=staged.logs)

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        """Return the group of each key; version V2 keeps the keys of one value together."""
        assert definition is not None, "the guard refused a partition without definition"
        return pa.array(secondary_shards(keys, len(groups), definition.version))


def stage_secondary(name: str, definition: Definition, staging: Staging) -> StagedUpdate:
    """Find the values that a commit changes, and encode them as log files, one per file group of the index."""
    commit = staging.commit
    if commit.operation in REWRITES:
        return StagedUpdate(groups=staging.groups, source=_source(definition))
    groups = valued_groups(commit.stats, keeps=staging.is_shared)
    if commit.replaced:
        groups += [IndexedGroup(before=piece) for piece in staging.replaced()]
    column = _column(definition, staging.read, staging.directory, len(staging.groups))
    _refuse_type(name, column)
    files = _found_keys(column, groups, staging.run)
    encoding = _Encoding(files=tuple(files), logs=staging.logs(name))
    numbers = sorted({number for file in files for number in file.batches})
    logs = staging.run(partial(_encode_group, encoding), numbers) if numbers else []
    staged = tuple(log for log in logs if log is not None)
    return StagedUpdate(groups=staging.groups, logs=staged, source=_source(definition))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoding:
    """The settings of the tasks that encode changed keys."""

    files: tuple[ChangedKeysFile, ...]
    logs: LogStage


def _encode_group(encoding: _Encoding, attempt: Attempt, number: int) -> StagedLog | None:
    changed = changed_keys_of(encoding.logs.storage, encoding.files, number, CHANGED)
    removed = changed.column("removed")
    added = pc.unique(changed.column("key").filter(pc.invert(removed)))
    gone = pc.unique(changed.column("key").filter(removed))
    # A row that moved between file groups with the same value occurs as removed and as added, so nothing changes.
    gone = gone.filter(pc.invert(pc.is_in(gone, value_set=added)))
    return encoding.logs.write(attempt, number, _encoded(added), gone)


def _refuse_type(name: str, column: IndexedColumn) -> None:
    """Raise UnsupportedError if the index cannot store values of the column's new type."""
    kinds = {field.name: field.type for field in column.read.table}
    refusal = text_refusal(kinds[column.column]) if column.column in kinds else None
    if refusal is not None:
        raise UnsupportedError(
            f"{column.storage.root}: the index {index_name(name)} on {column.column!r} cannot be "
            f"maintained, so it would hide rows: {refusal}. Cast the values, or drop the index with `lakehouse index "
            "drop` and write again",
            column=column.column,
        )


def _column(definition: Definition, read: SliceContext, directory: str, groups: int) -> IndexedColumn:
    (column,) = definition.source_fields
    return IndexedColumn(read=read, column=column, directory=directory, groups=groups, version=definition.version)


def _found_keys(column: IndexedColumn, groups: Sequence[IndexedGroup], run: Run) -> list[ChangedKeysFile]:
    tasks = [groups[start : start + _GROUPS_AT_ONCE] for start in range(0, len(groups), _GROUPS_AT_ONCE)]
    files = run(partial(find_changed_values, column), tasks) if tasks else []
    return [file for file in files if file is not None]


def _source(definition: Definition) -> str:
    return f"{definition.source_fields[0]} {definition.version}"


def _encoded(keys: pa.Array) -> pa.Table:
    return encode_secondary(pa.table([keys], SECONDARY_ROWS))
