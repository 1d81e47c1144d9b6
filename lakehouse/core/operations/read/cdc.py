"""Plans reads of change data: every row inserted, updated or deleted by a range of commits (DATA-6; TL-6.7).

    op string | ts_ms string | before struct<columns> | after struct<columns>

Changes are ordered by the completion of their commits. Within a commit, deletes come before inserts and updates: a row
that moves to another partition is deleted in one file group and inserted in another, and an overwrite deletes the keys
that it inserts again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.log.cdc_reader import SIDES, ChangeContext, read_changes
from lakehouse.core.format.json_rows import json_objects
from lakehouse.core.format.log.cdc import AFTER, BEFORE, change_schema, image_type
from lakehouse.core.operations.load.cleaned_files import cleaned_files
from lakehouse.core.operations.load.listing import supported_data_files
from lakehouse.core.operations.load.metadata import known_files
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import loaded_commits_in_range, settled_range, with_archived_range
from lakehouse.core.operations.read.queries import EARLIEST, Changes, ScanRequest, instant_text
from lakehouse.core.operations.read.scan import is_cleaning, slice_context
from lakehouse.core.planning.cdc import UNCHANGING, FileGroupChange, in_order, plan_changes
from lakehouse.core.planning.partitions import partition_filter
from lakehouse.core.planning.predicate import check_columns, matching, parse_predicate
from lakehouse.core.rows.record_merge import DELETED_COLUMN, OPERATION_COLUMN
from lakehouse.core.state.data_files import file_paths, files_table, members, one_array
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import CDC_ENABLED, require_mergeable
from lakehouse.errors import UnsupportedError, UserError, nearest
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Instant
from lakehouse.model.predicate import Predicate, columns_of, statistics_condition

#: Formats of incremental reads: the newest rows, or change data.
LATEST_STATE, CDC = FORMATS = ("latest_state", "cdc")
JSON_SCHEMA = pa.schema([(name, pa.string()) for name in ("op", "ts_ms", BEFORE, AFTER)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScan(Readable):
    """A planned read of changes.

    Attributes:
        changes: The changes, one item per commit and file group, for readers that need no order within a commit.
        context: The settings for reading them.
        images: The columns of the before and after images in the result.
        where: A condition that the before or the after image meets.
        rows_delete: Whether data rows of a log can be deletes.
    """

    changes: tuple[FileGroupChange, ...]
    context: ChangeContext
    images: pa.Schema
    where: Predicate | None = None
    rows_delete: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return change_schema(self.images)

    @property
    def bytes(self) -> int:
        """The size of the files with the changes in bytes: change logs, or else the slices that are compared."""
        return sum(change.bytes for change in self.changes)

    def in_order(self) -> ChangeScan:
        """Return the scan with its changes in the order of a replay by key; some file groups are read twice."""
        return replace(self, changes=in_order(self.changes, rows_delete=self.rows_delete))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in the order of their commits, and within a commit deletes first."""
        for change in self.in_order().changes:
            yield from self.read(change)

    def read(self, change: FileGroupChange, sides: Collection[str] = SIDES) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one commit in one file group; images that are not in `sides` may be null."""
        for rows in read_changes(self.context, change, sides if self.where is None else SIDES):
            selected = self._selected(rows)
            if selected.num_rows:
                yield from selected.combine_chunks().to_batches()

    def rows(self, change: FileGroupChange, sides: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the before or after images, or both, of one commit in one file group, as `row_schema`."""
        for batch in self.read(change, sides):
            for side in sides:
                image = batch.column(batch.schema.get_field_index(side))
                there = image if image.null_count == 0 else image.drop_null()
                if len(there):
                    yield pa.RecordBatch.from_arrays(there.flatten(), schema=self.row_schema)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of `rows`."""
        return pa.schema([*image_type(self.images)])

    def _shown(self) -> Shown:
        line = f"planned change scan: {count_text(len(self.changes), 'changed file group')}"
        rows = [{"commit": c.instant, "partition": c.partition, "file_group": c.file_id} for c in self.changes]
        return Shown(f"{line}, {count_text(len(self.images), 'column')}", {"columns": tuple(self.images.names)}, rows)

    def _selected(self, rows: pa.Table) -> pa.Table:
        if self.where is not None:
            meets = [_meets(rows.column(name), self.where) for name in SIDES]
            rows = rows.filter(pa.array(meets[0] | meets[1]))
        if rows.schema.equals(self.schema):
            return rows
        kind = image_type(self.images)
        for name in SIDES:
            whole = rows.column(name).combine_chunks()
            columns = [pc.struct_field(whole, field.name) for field in kind]
            image = pa.StructArray.from_arrays(columns, fields=list(kind), mask=pc.is_null(whole))
            rows = rows.set_column(rows.schema.get_field_index(name), name, image)
        return rows


def check_format(text: str) -> None:
    """Raise UserError if `text` is not a format of incremental reads."""
    if text not in FORMATS:
        formats = " or ".join(map(repr, FORMATS))
        raise UserError(f"format {text!r} of an incremental read: must be {formats}.{nearest(text, FORMATS)}")


def plan_change_read(table: LoadedTable, query: Changes, request: ScanRequest) -> ChangeScan:
    """Plan a read of changes; no data file is opened.

    Args:
        table: The loaded table.
        query: The range of commits.
        request: Columns of the images, condition and memory budget; its query is not used.

    Raises:
        UserError: The table keeps no change data, a column does not exist, or changes of the range are not stored
            any more.
        UnsupportedError: The changes are in log files of version 6.
        RetryableError: A bound is after a pending write (`settled_range`).
    """
    _check(table)
    schema = table_schema(table)
    full = schema if schema is not None else pa.schema([])
    where = _condition(request, full)
    images = full if request.columns is None else _chosen(full, request.columns)
    query = settled_range(table, query)
    table = with_archived_range(table, query.begin, query.end)
    instants = loaded_commits_in_range(table, query.begin, query.end)
    commits = [pair for pair in table.store.commits(instants) if pair[1].operation not in UNCHANGING]
    commits.sort(key=lambda pair: (pair[0].completion, pair[0].requested))
    _refuse_archived(table, query.begin)
    changes = _changes(table, commits)
    if any(s is not None and s.logs for change in changes for s in (change.before, change.after)):
        require_mergeable(table.config)
    changes = _in_partitions(table, changes, where, full)
    slices = slice_context(table, full, budget=request.memory_budget_bytes)
    needed = set(full.names) if slices.mixes_versions else {*images.names, *(columns_of(where) if where else ())}
    # In other tables each log file contains blocks of one commit.
    completions = {write.requested: write.completion for write in table.timeline.writes() if table.config.is_upgraded}
    stored = pa.schema([field for field in full if field.name in needed])
    context = ChangeContext(slices=slices, images=stored, completions=completions)
    return ChangeScan(
        changes=changes, context=context, images=images, where=where, rows_delete=_rows_delete(table, full)
    )


def _condition(request: ScanRequest, full: pa.Schema) -> Predicate | None:
    """Return the condition of a request, parsed and with columns that exist."""
    where = parse_predicate(request.where) if isinstance(request.where, str) else request.where
    if where is not None:
        check_columns(where, full)
    return where


def _in_partitions(
    table: LoadedTable, changes: tuple[FileGroupChange, ...], where: Predicate | None, full: pa.Schema
) -> tuple[FileGroupChange, ...]:
    """Return the changes in partitions that can contain rows of a condition; all if rows may change partitions."""
    partitions = partition_filter(statistics_condition(where), full, table.config.path_keys)
    if partitions is None:
        return changes
    selected = partitions.select(pa.array([change.partition for change in changes], pa.string())).tolist()
    return tuple(change for change, is_selected in zip(changes, selected, strict=True) if is_selected)


def as_json(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes with the rows before and after as JSON strings."""
    images = [json_objects(changes.column(name)) for name in SIDES]
    return pa.RecordBatch.from_arrays([changes.column(0), changes.column(1), *images], schema=JSON_SCHEMA)


def _check(table: LoadedTable) -> None:
    root = table.env.storage.root
    if table.config.cdc is None:
        raise UserError(
            f"{root} keeps no change data ({CDC_ENABLED} is not true), so the rows before a change are not reliable. "
            "Read it without format='cdc', or create the table with cdc='DATA_BEFORE_AFTER'",
            location=root,
        )
    if not table.config.populate_meta_fields:
        raise UnsupportedError(
            f"{root}: rows of this table do not say which commit wrote them (hoodie.populate.meta.fields=false), so "
            "its changes cannot be read"
        )
    if table.config.layout.appends_to_logs and table.config.is_merge_on_read:
        raise UnsupportedError(
            f"{root}: changes of merge-on-read tables of version 6 cannot be read, because a log file holds "
            "several commits; upgrade the table with Apache Hudi first"
        )


def _chosen(full: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    if not columns:
        raise UserError("the list of columns is empty; name at least one column, or omit it to read all")
    for name in columns:
        if name not in full.names:
            raise UserError(
                f"column {name!r} is not among the data columns, and rows before and after have no others."
                f"{nearest(name, full.names)}",
                column=name,
            )
    return pa.schema([full.field(name) for name in columns])


def _rows_delete(table: LoadedTable, schema: pa.Schema) -> bool:
    """Return whether a data row of a log can be a delete: by a column of the table, or by its merger."""
    rule = table.config.merge_rule
    marks = {DELETED_COLUMN, OPERATION_COLUMN, rule.delete_field}
    return rule.merger is not None or not marks.isdisjoint(schema.names)


def _changes(table: LoadedTable, commits: Sequence[tuple[Instant, CommitMetadata]]) -> tuple[FileGroupChange, ...]:
    groups = {(stat.partition, stat.file_id) for _, metadata in commits for stat in metadata.stats}
    groups |= {(path, file_id) for _, metadata in commits for path, ids in metadata.replaced.items() for file_id in ids}
    if not groups:
        return ()
    # A pending clean may have deleted files that the metadata table lists.
    partitions = sorted({partition for partition, _ in groups})
    listing = known_files(table, partitions, on_storage=is_cleaning(table))
    listed = _of_groups(supported_data_files(table, listing.files), groups)
    # The slices before the first commit and after the last one may consist of files that were cleaned.
    earliest = min(instant.requested for instant, _ in commits)
    cleaned = _of_groups(files_table(cleaned_files(table, earliest)), groups)
    gone = cleaned.filter(pc.invert(members(file_paths(cleaned), file_paths(listed))))
    # Python objects are created only for the files of changed file groups.
    slices = groups_of(table, pa.concat_tables([listed, gone]), load_visible(table)).by_group()
    lost = frozenset(file_paths(gone).to_pylist())
    return plan_changes(commits, slices, table.timeline, layout=table.config.layout, cleaned_paths=lost)


def _of_groups(files: pa.Table, groups: Collection[Group]) -> pa.Table:
    """Return the files of file groups."""
    wanted = pa.array([f"{partition}\0{file_id}" for partition, file_id in groups], pa.string())
    keys = pc.binary_join_element_wise(one_array(files["partition"]), one_array(files["file_id"]), "\0")
    return files.filter(members(keys, wanted))


def _refuse_archived(table: LoadedTable, begin: str | None) -> None:
    """Raise UserError if commits of the range are archived and the table is of version 6, whose archive is not read."""
    if begin is None or table.config.layout.has_completion_times:
        return
    after = "" if begin == EARLIEST else instant_text(begin)
    first = load_visible(table).archived_before
    if after >= first or not table.env.storage.list(_archive(table)):
        return
    instants = pc.unique(supported_data_files(table, known_files(table).files)["instant"]).to_pylist()
    archived = [instant for instant in instants if after < instant < first]
    if archived:
        raise UserError(
            f"the changes since {begin} are no longer available: commits up to {max(archived)} are archived. "
            f"Begin at {max(archived)} or later, with a snapshot as of then before it",
            begin=begin,
        )


def _archive(table: LoadedTable) -> str:
    """Return the directory of archived instants (TL-1)."""
    return f".hoodie/{table.config.raw.get('hoodie.archivelog.folder', 'archived')}"


def _meets(images: pa.ChunkedArray, where: Predicate) -> np.ndarray:
    whole = images.combine_chunks()
    schema = pa.schema([*whole.type, pa.field("", pa.int64())])
    columns = [pc.struct_field(whole, [number]) for number in range(whole.type.num_fields)]
    rows = pa.Table.from_arrays([*columns, pa.array(np.arange(len(whole)))], schema=schema)
    matches = np.zeros(len(whole), bool)
    matches[matching(rows, where, schema).column(-1).to_numpy()] = True
    # A missing image meets no condition, not even `column is null`.
    meets: np.ndarray = matches & np.asarray(pc.is_valid(whole))
    return meets
