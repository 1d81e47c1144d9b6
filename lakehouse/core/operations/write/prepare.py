"""Check a write before it gets an instant: determine schema, keys and index, and refuse bad input."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.partial_update_rows import completes_rows
from lakehouse.core.files.log.log_reader import OPERATION
from lakehouse.core.files.stage.staging import check_partition_paths
from lakehouse.core.files.stage.write_context import Incoming, WriteContext
from lakehouse.core.format.avro.schema import META_COLUMNS, arrow_to_avro
from lakehouse.core.index.write_tasks import GroupTask
from lakehouse.core.metadata.partitions.file_statistics import measured_columns
from lakehouse.core.operations.create.declare import require_ordered
from lakehouse.core.operations.load.commits import latest_commit, recent_files, recent_partitions
from lakehouse.core.operations.load.schema import declared_schema
from lakehouse.core.operations.load.schema_history import ids_extra, ids_of_write
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.write_settings import bytes_per_row, require_writes
from lakehouse.core.operations.placement.protocol import Placement, PreparedWrite, WriteRequest
from lakehouse.core.operations.placement.registry import placement_of
from lakehouse.core.operations.write.insert_duplicates import insert_duplicates
from lakehouse.core.operations.write.tombstones import orders_deletes
from lakehouse.core.planning import conflict
from lakehouse.core.planning.key_ranges import ranges_extra
from lakehouse.core.planning.schema import Role, SchemaPlan, evolve, first_schema, incoming_columns, provided_columns
from lakehouse.core.planning.schema_history import unnamed_so_far
from lakehouse.core.planning.spread_history import SPREAD_KEY, SpreadHistory, spread_history
from lakehouse.core.rows.absent_columns import LACKS
from lakehouse.core.rows.column_groups import check_groups
from lakehouse.core.rows.deduplicate import check_orderable
from lakehouse.core.rows.event_time import check_event_time
from lakehouse.core.rows.keys import required_columns
from lakehouse.core.rows.record_merge import DELETED_COLUMN, ROW_MARKS, check_delete_column, row_marks
from lakehouse.core.rows.timestamp_units import check_first_units
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import require_completion_times
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import RetryableError, UnsupportedError, UserError, nearest
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.drift import BatchColumns, ColumnDrift, Drift, encode_drift
from lakehouse.model.keys import KEY_ENCODING, KeyConfig, KeyEncoding
from lakehouse.model.merge import MergeRule
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.spread import SPREAD_COLUMN
from lakehouse.spec.options.write import DUPLICATES, InsertDuplicates
from lakehouse.spec.table.bucket_rules import EXPRESSIONS

_KEY = META_COLUMNS[2]


def shared_columns(write: PreparedWrite) -> frozenset[str]:
    """Return the columns that every row provides, even in a partial update."""
    keys, rule = write.context.keys, write.context.rule
    return frozenset(name.split(".")[0] for name in (*required_columns(keys), *rule.ordering))


def commit_extra(
    write: PreparedWrite, stats: Sequence[WriteStat], rows: int, drift: Iterable[ColumnDrift] = ()
) -> dict[str, str]:
    """Return the extra metadata for a commit of `rows` rows: schema, column ranges, provided columns, drift.

    `drift` are the value changes that the tasks detected.
    """
    context = write.context
    extra = {"schema": context.avro_schema} | ranges_extra(stats, context.indexed)
    if write.history is not None:
        extra |= ids_extra(ids_of_write(write.history, context.schema, context.instant))
    # Rows that were completed repeat the stored values of the other columns, so a concurrent write of those columns
    # also conflicts.
    if context.incoming.provided_columns is not None and not completes_rows(context):
        extra[conflict.COLUMNS_KEY] = json.dumps(context.incoming.provided_columns)
    return extra | encode_drift((*_counted_drift(write, stats, rows), *drift))


def _counted_drift(write: PreparedWrite, stats: Sequence[WriteStat], rows: int) -> Iterator[ColumnDrift]:
    """Yield the drifts with the number of affected rows; `rows` is the number of rows in the batch."""
    columns = write.request.columns or BatchColumns(rows=rows)
    yield from columns.drift
    sparse = dict(columns.nulled_rows)
    for drift in write.drift:
        name = drift.column.split(".")[0]
        if drift.change not in (Drift.KEPT, Drift.NULLED) or name != drift.column:
            without = columns.lacking_rows.get(name, 0)
            if drift.change is Drift.ADDED and name == drift.column:
                without += sparse.pop(name, 0)
            yield replace(drift, rows=columns.rows - without)
            continue
        lacking = columns.lacking_rows.get(name, columns.rows)
        # A new record has no stored value to keep.
        nulled = lacking if drift.change is Drift.NULLED else sum(stat.nulled.get(name, 0) for stat in stats)
        sparse[name] = sparse.get(name, 0) + nulled
        if lacking > nulled:
            yield replace(drift, rows=lacking - nulled)
    for name, count in sparse.items():
        if count:
            yield ColumnDrift(column=name, change=Drift.NULLED, rows=count)


def refuse_if_clustered(closed: Mapping[Group, str], group: Group) -> None:
    """Raise RetryableError if a pending clustering holds this file group (Hudi's reject strategy).

    `closed` maps (partition, file id) to the requested time of the clustering.
    """
    if group in closed:
        partition, file_id = group
        raise RetryableError(
            f"file group {file_id} of partition {partition!r} is being clustered by {closed[group]}; run again when it "
            "is done",
            file_id=file_id,
        )


def prepare(table: LoadedTable, engine: Engine, policies: Policies, request: WriteRequest) -> PreparedWrite:
    """Check a write against the table and determine its schema; writes no data.

    Raises:
        UserError: A column or value does not fit the table; the message names it.
        UnsupportedError: The table uses a feature that cannot be written.
    """
    operation, frame, deletes_only = request.operation, request.frame, request.operation is Operation.DELETE
    require_writes(table)
    require_completion_times(table.config, table.env.storage.root, policies)
    config, declared = table.config, declared_schema(table)
    stored, history = (None, None) if declared is None else (declared.schema, declared.history)
    batch = None if frame is None else _batch_columns(engine.schema(frame), None if deletes_only else stored)
    keys, of_table = _encoded_keys(table, policies), placement_of(policies.index.index_type)
    placement = _placement(of_table, keys, batch if deletes_only else None)
    planned = placement.layout(table, policies, replaces=request.replaces)
    plan = _schema(table, policies, request, stored, batch)
    if history is not None and stored is not None:
        plan = replace(plan, schema=unnamed_so_far(plan.schema, stored))
    event_time = "" if batch is None or deletes_only else policies.event_time.column
    _check_times(table, policies, None if deletes_only else batch, plan.schema, event_time)
    _check_generated_keys(table, operation, batch)
    context = WriteContext(
        storage=table.env.storage if request.near is None else cast(Storage, request.near),
        clock=table.env.clock,
        instant="",
        table=config.name,
        schema=plan.schema,
        avro_schema=arrow_to_avro(plan.schema, table=config.name),
        keys=keys,
        table_layout=config.layout,
        rule=config.merge_rule,
        policy=policies.write,
        bytes_per_row=bytes_per_row(table, policies),
        incoming=replace(_incoming(table, policies, request, batch, of_table), completes=history is not None),
        layout=planned.staging,
        move_partitions=planned.moves,
        max_log_bytes=policies.log.max_file_bytes,
        cdc=config.cdc,
        event_time=event_time,
        rounds=policies.schema.rounds,
        indexed=measured_columns(plan.schema, config, policies, table.metadata.definitions),
        known_partitions=recent_partitions(table),
    )
    spread = None if batch is None or deletes_only else _spread(table, policies, of_table, plan.schema)
    context = _spreading(context, policies, spread)
    if operation is Operation.UPSERT and batch is not None and _keeps(policies, request):
        context = _keeping(context, request.columns, batch)
    check_partition_paths(context, frame)
    if policies.transaction.non_blocking:
        _check_non_blocking(table, policies, of_table, operation, context)
        context = context.with_incoming(reads_no_rows=True)
    return PreparedWrite(
        request=request,
        engine=engine,
        policies=policies,
        table=table,
        context=context,
        placement=placement,
        strategy=_strategy(policies, of_table),
        shard_by=(_KEY,) if _has_keys(keys, operation, batch) else keys.record_key_fields,
        resizes=planned.resizes,
        drift=() if request.sets_columns else plan.drift,
        spread=spread,
        history=history,
    )


# parameters: the table and its options, and what is written how
def _incoming(
    table: LoadedTable, policies: Policies, request: WriteRequest, batch: pa.Schema | None, placement: Placement
) -> Incoming:
    """Return the properties of the requested rows; `batch` is their schema."""
    operation, generates_keys = request.operation, table.config.keys.generates_keys
    has_policy = insert_duplicates(policies.write, operation) is not InsertDuplicates.NONE and not generates_keys
    deletes_only = operation is Operation.DELETE
    combine = request.looks_up_keys or has_policy or (policies.write.combine_before_insert and not generates_keys)
    # Readers merge a log entry with one base row of its key, and buckets are changed without a look-up. So a base file
    # must not have two rows of a key.
    one_row = not combine and not generates_keys and table.config.is_merge_on_read and placement.fixes_groups
    return Incoming(
        deletes_only=deletes_only,
        ordered_deletes=deletes_only and _provides_ordering(table, policies, batch),
        combine=combine or one_row,
        drops_repeated=one_row,
        deletes_yield=request.deletes_yield or one_row,
        generates_keys=generates_keys and not request.looks_up_keys,
        fills_keys=generates_keys and request.sets_columns and operation is Operation.UPSERT,
    )


def _spread(table: LoadedTable, policies: Policies, placement: Placement, schema: pa.Schema) -> SpreadHistory | None:
    """Return the history of the spread column in earlier commits; None if there is no such column.

    Raises UserError if the table lacks the column, or if its index determines the file group of a key.
    """
    column, root = policies.spread.column.strip(), table.env.storage.root
    if not column:
        return None
    if placement.fixes_groups:
        raise UserError(
            f"{root}: {SPREAD_COLUMN}={column} gives large values file groups of their own, but the bucket index "
            "determines the file group of a key. Remove the option, or raise the number of buckets of hot partitions "
            f"by {EXPRESSIONS}",
            option=SPREAD_COLUMN,
        )
    if column not in schema.names or pa.types.is_nested(schema.field(column).type):
        raise UserError(
            f"{root}: {SPREAD_COLUMN}={column}: the table has no such column of a plain type."
            f"{nearest(column, schema.names)} Columns: {', '.join(schema.names)}",
            option=SPREAD_COLUMN,
        )
    newest = latest_commit(table, SPREAD_KEY, archived=False)
    return spread_history(None if newest is None else newest[1].extra[SPREAD_KEY], column)


def _spreading(context: WriteContext, policies: Policies, spread: SpreadHistory | None) -> WriteContext:
    """Return the context of a write that stages each large value of the spread column separately."""
    if spread is None:
        return context
    # 0 disables learning. Otherwise every value of a commit would count as large.
    least_rows = policies.spread.min_bytes / context.bytes_per_row if policies.spread.min_bytes else math.inf
    large = spread.large(policies.spread.large_values, least_rows)
    layout = replace(context.layout, spread_column=spread.column, spread_large=large)
    return replace(context, layout=layout)


def _placement(placement: Placement, keys: KeyConfig, deleted: pa.Schema | None) -> Placement:
    """Return the placement of a write: a delete without partition columns looks up its keys in all partitions."""
    if deleted is not None and not all(f.split(".")[0] in deleted.names for f in keys.partition_fields):
        return placement.by_key_alone
    return placement


def _has_keys(keys: KeyConfig, operation: Operation, batch: pa.Schema | None) -> bool:
    """Return whether the rows contain their record key: keys to delete, or rows whose key was generated."""
    looks_up = operation is Operation.DELETE or (operation is Operation.UPSERT and keys.generates_keys)
    return looks_up and batch is not None and _KEY in batch.names


def _check_generated_keys(table: LoadedTable, operation: Operation, batch: pa.Schema | None) -> None:
    """Raise UserError for a write by key to a table without key columns, unless its rows contain generated keys."""
    keys = table.config.keys
    if not keys.generates_keys or batch is None or operation not in (Operation.UPSERT, Operation.DELETE):
        return
    if not _has_keys(keys, operation, batch):
        verb = "upsert" if operation is Operation.UPSERT else "delete by columns"
        raise UserError(
            f"{table.env.storage.root}: {verb} needs a record key, and the table has none: each row got a generated "
            "key. Add rows by insert, change rows by update, merge or delete_where, or create a table with record_key",
            operation=operation.value,
        )


def _provides_ordering(table: LoadedTable, policies: Policies, batch: pa.Schema | None) -> bool:
    """Return whether deletes provide ordering columns that the table compares. This requires tombstones.

    Raises UnsupportedError for a column type that delete blocks of log files cannot store as ordering value.
    """
    names = table.config.merge_rule.compared
    if not policies.deletes.retention_ms or batch is None or not names or not set(names) <= set(batch.names):
        return False
    if not orders_deletes(table, batch):
        raise UnsupportedError(
            f"{table.env.storage.root}: log files cannot store the ordering columns {', '.join(names)} of a delete, "
            "because of their types; delete by the key columns alone, or write rows that are marked as deletes"
        )
    return True


# parameters: the table, the batch, the schema that the table gets, and the options
def _check_times(
    table: LoadedTable, policies: Policies, batch: pa.Schema | None, schema: pa.Schema, event_time: str
) -> None:
    """Raise UserError for columns of partitions by time, event time, delete marks or ordering with a wrong type.

    `batch` may be None. Partitions are only checked before the first rows are written.
    """
    rule = table.config.merge_rule
    if policies.deletes.retention_ms:
        require_ordered(rule, table.env.storage.root)
    if batch is None:
        return
    if event_time:
        check_event_time(batch, event_time)
    if not table.timeline.writes():
        check_first_units(table.config.keys, schema)
    check_delete_column(batch)
    check_groups(batch.names, rule.groups)
    for name in (*rule.ordering, *(group.ordering for group in rule.groups if group.ordering in batch.names)):
        check_orderable(batch, name)


def _strategy(policies: Policies, placement: Placement) -> conflict.Strategy:
    if policies.transaction.conflict_strategy:
        return conflict.strategy_named(policies.transaction.conflict_strategy)
    if policies.transaction.non_blocking:
        return conflict.non_blocking
    return placement.strategy


def _check_non_blocking(
    table: LoadedTable, policies: Policies, placement: Placement, operation: Operation, context: WriteContext
) -> None:
    """Raise UserError for a write that non-blocking concurrency control does not allow."""
    mode, root = "hoodie.write.concurrency.mode=NON_BLOCKING_CONCURRENCY_CONTROL", table.env.storage.root
    if not table.config.is_merge_on_read or not placement.appends_together:
        raise UserError(
            f"{mode} needs a merge-on-read table with hoodie.index.type=BUCKET, and {root} is "
            f"{'merge-on-read' if table.config.is_merge_on_read else 'copy-on-write'} with {policies.index.type}; use "
            "OPTIMISTIC_CONCURRENCY_CONTROL"
        )
    if operation not in (Operation.UPSERT, Operation.INSERT, Operation.DELETE):
        raise UserError(
            f"{mode} allows upsert, insert and delete, which append logs; {operation.value} writes or replaces base "
            "files: run it with OPTIMISTIC_CONCURRENCY_CONTROL"
        )
    if insert_duplicates(policies.write, operation) is not InsertDuplicates.NONE:
        raise UserError(
            f"{DUPLICATES}={policies.write.insert_duplicates} needs conflict checks between writers, which {mode} "
            "does not make; use OPTIMISTIC_CONCURRENCY_CONTROL",
            option=DUPLICATES,
        )
    marks = sorted(set(context.schema.names) & {DELETED_COLUMN, OPERATION, context.rule.delete_field})
    if context.incoming.keeps and marks:
        raise UserError(
            f"{root}: column {marks[0]!r} marks deletes, so rows of a partial update must be completed from the stored "
            f"rows, which {mode} does not read; provide all columns, or use OPTIMISTIC_CONCURRENCY_CONTROL"
        )
    if context.incoming.keeps and context.incoming.completes:
        raise UserError(
            f"{root}: the table has column ids since a change of its columns, so rows of a partial update must be "
            f"completed from the stored rows, which {mode} does not read; provide all columns, or use "
            "OPTIMISTIC_CONCURRENCY_CONTROL"
        )


def profile_stats(tasks: Sequence[GroupTask], *, inserts: bool = False) -> tuple[WriteStat, ...]:
    """Return the stats for the inflight file: the file groups that the write will change, for early detection.

    With `inserts` each partition also has a stat without file id, with the rows of new file groups (V6-3.4).
    """
    changed = [
        WriteStat(
            partition=task.partition,
            file_id=task.file_id,
            path="",
            prev_commit=before,
            num_updates=sum(entry.rows for entry in task.entries) if inserts else 0,
        )
        for task in tasks
        if (before := _extended(task))
    ]
    if not inserts:
        return tuple(changed)
    new = Counter({task.partition: 0 for task in tasks})
    for task in tasks:
        new[task.partition] += 0 if _extended(task) else sum(entry.rows for entry in task.entries)
    return (
        *(
            WriteStat(partition=partition, file_id="", path="", prev_commit=None, num_inserts=rows)
            for partition, rows in new.items()
        ),
        *changed,
    )


def _extended(task: GroupTask) -> str | None:
    """Return the instant of the slice that a task extends, or of the resize for which it copies; None if new."""
    if task.resize is not None:
        return task.resize
    if task.base is not None:
        return task.base.instant
    return None if task.file_slice is None else task.file_slice.base_instant


def _schema(
    table: LoadedTable, policies: Policies, request: WriteRequest, stored: pa.Schema | None, batch: pa.Schema | None
) -> SchemaPlan:
    """Return the schema of the table after the write.

    `stored` is its current schema, `batch` the schema of the rows.
    """
    operation, columns = request.operation, request.columns
    keys, rule = table.config.keys, table.config.merge_rule
    if operation is Operation.DELETE and batch is not None:
        if _KEY not in batch.names:
            incoming_columns(batch, required=keys.record_key_fields)
        if stored is None:
            raise UserError(f"{table.env.storage.root}: the table has no rows yet, so there is nothing to delete")
        return SchemaPlan(schema=stored)
    if batch is None:
        return SchemaPlan(schema=stored if stored is not None else pa.schema([]))
    if stored is not None:
        # Polars writes a column that has only nulls without a type. It gets the type of the table's column.
        batch = pa.schema(
            [
                column.with_type(stored.field(column.name).type)
                if pa.types.is_null(column.type) and column.name in stored.names
                else column
                for column in batch
            ]
        )
    incoming = incoming_columns(batch, required=(*required_columns(keys), *rule.ordering))
    if stored is None:
        return SchemaPlan(schema=first_schema(incoming))
    missing = "keep" if request.sets_columns else policies.schema.missing
    if missing == "keep" and operation is not Operation.UPSERT:
        # Inserted records have no stored values, and an overwrite does not read the stored values.
        missing = "null" if operation in (Operation.INSERT, Operation.BULK_INSERT) else "fail"
    partly = () if columns is None else columns.lacking_rows.keys() - row_marks(stored)
    fixed, marks = _roles(keys, rule), ROW_MARKS | ({rule.delete_field} if rule.delete_field else set())
    plan = evolve(stored, incoming, policies.schema, missing=missing, fixed=fixed, partly=partly, marks=marks)
    return _without_other_groups(plan, rule, incoming)


def _without_other_groups(plan: SchemaPlan, rule: MergeRule, incoming: pa.Schema) -> SchemaPlan:
    """Remove the drift of column groups that are missing in the batch, because other writers fill them."""
    absent = {name for group in rule.groups if group.ordering not in incoming.names for name in group.names}
    if not absent:
        return plan
    drift = tuple(one for one in plan.drift if one.change is not Drift.KEPT or one.column not in absent)
    return replace(plan, drift=drift)


def _batch_columns(batch: pa.Schema, stored: pa.Schema | None) -> pa.Schema:
    """Return the data columns of a batch, and the delete marks of the table, which each batch provides."""
    columns = [column for column in batch if column.name != LACKS]
    marks = [] if stored is None else [stored.field(name) for name in sorted(row_marks(stored))]
    return pa.schema([*columns, *(mark for mark in marks if mark.name not in batch.names)])


def _keeps(policies: Policies, request: WriteRequest) -> bool:
    """Return whether stored records keep the columns that their new rows do not provide."""
    return policies.schema.missing == "keep" or request.sets_columns


def _keeping(context: WriteContext, columns: BatchColumns | None, batch: pa.Schema) -> WriteContext:
    """Return the context of an upsert in which a stored record keeps the columns that its new row does not provide.

    The groups of missing columns keep their positions, so a group whose columns were dropped is empty. The last group
    contains the columns that all rows lack.
    """
    if columns is None or not columns.lacks:
        return context.with_incoming(provided_columns=provided_columns(context.schema, batch))
    names = frozenset(context.schema.names)
    names -= row_marks(context.schema)
    return context.with_incoming(lacks=(*(group & names for group in columns.lacks), names.difference(batch.names)))


def _roles(keys: KeyConfig, rule: MergeRule) -> dict[str, frozenset[Role]]:
    """Return the columns for which a type change may change keys, partition paths or the order of versions."""
    roles: dict[str, frozenset[Role]] = {}
    named = (
        (Role.KEY, keys.record_key_fields),
        (Role.PARTITION, keys.partition_fields),
        (Role.ORDERING, (*rule.ordering, *(group.ordering for group in rule.groups))),
    )
    for role, names in named:
        for name in names:
            roles[name] = roles.get(name, frozenset()) | {role}
    return roles


def _encoded_keys(table: LoadedTable, policies: Policies) -> KeyConfig:
    """Return the key config of a write, with the stored form of keys and whether keys are checked.

    Raises UserError if write and table have different key encodings.
    """
    keys, encoding = _sniffed_keys(table), KeyEncoding(policies.write.key_encoding)
    escapes = keys.encoding is KeyEncoding.ESCAPED
    if escapes != (encoding is KeyEncoding.ESCAPED) and len(keys.record_key_fields) > 1:
        raise UserError(
            f"{KEY_ENCODING}={encoding}: the record keys of {table.env.storage.root} are "
            f"{'escaped' if escapes else 'not escaped'}, which is fixed when a table is created; a write with another "
            "encoding would duplicate stored rows. Leave the option out",
            option=KEY_ENCODING,
        )
    return keys if escapes else replace(keys, encoding=encoding)


def _sniffed_keys(table: LoadedTable) -> KeyConfig:
    """For a COMPLEX key generator with one field, return the key config with the form that stored keys have.

    Releases of Hudi differ in whether the form is `field:value` or `value` (DATA-2.1), so a stored key is inspected.
    """
    keys = table.config.keys
    if keys.field_prefix is None:
        return keys
    for files in recent_files(table, 10):
        has_rows = pc.and_(pc.greater(files["num_writes"], 0), pc.ends_with(files["path"], ".parquet"))
        for path in files["path"].filter(has_rows):
            try:
                reader = BaseFileReader(table.env.storage, path.as_py())
                first = reader.footer("hoodie_min_record_key")
                key = first if first is not None else reader.column(_KEY)[0].as_py()
            except NotFoundError:
                # A clean deleted the file. Try a file of another commit.
                continue
            return replace(keys, field_prefix=str(key).startswith(f"{keys.record_key_fields[0]}:"))
    return keys
