"""Reads changes of tables as DataFrames: the newest versions of changed rows, the versions before, and every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce

import pyarrow as pa
from pyspark.sql import functions as F

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.log.cdc import AFTER, BEFORE
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.cdc import ChangeScan, plan_change_read
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import SNAPSHOT, Changes, CompletedUpTo, Incremental, ScanRequest
from lakehouse.core.operations.read.scan import Scan, with_stored_schemas
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.errors import UserError, nearest
from lakehouse.model.predicate import And, In, Predicate
from lakehouse.spark.changes import changes_to_spark, distinct_rows, few_distinct_rows, rows_of_changes
from lakehouse.spark.engine import SMALL_BYTES, is_small
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.scan import scan_to_spark, spark_schema
from lakehouse.spark.sources import Frame, Schema, Session
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spec.sources.table_source import CHANGE_TYPE, COMMIT_TIME

#: The maximum number of groups for which a condition excludes files from the read.
_MOST_GROUPS = 1_000
#: Size of files that this process reads faster than Spark plans a read.
_STORED_HERE = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """The values of columns whose groups a run computes again.

    Attributes:
        columns: The columns.
        rows: The distinct values.
        where: A condition that the files and rows of these groups meet, or None.
        is_exact: Whether no other rows meet the condition.
    """

    columns: tuple[str, ...]
    rows: Frame
    where: Predicate | None = None
    is_exact: bool = False


def data_columns(loaded: LoadedTable) -> tuple[str, ...]:
    """Return the columns of a table's views: its data columns without the mark of deletes."""
    schema = table_schema(loaded)
    return tuple(name for name in (schema.names if schema is not None else ()) if name != DELETED_COLUMN)


def rows_up_to(session: Session, loaded: LoadedTable, end: str, where: Predicate | None = None) -> Frame:
    """Return all rows in a table as of a completion time; `where` excludes files from the read."""
    request = ScanRequest(query=CompletedUpTo(end), columns=data_columns(loaded), where=where)
    return _frame(session, loaded, request)


def changed_rows(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    """Return the newest version of each row that the commits completed in (begin, end] wrote."""
    request = ScanRequest(query=Incremental(begin, end), columns=data_columns(loaded))
    return _frame(session, loaded, request)


def rows_before(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    """Return the versions of rows that the commits completed in (begin, end] replaced or deleted."""
    return _in_one_task(rows_of_changes(session, _change_scan(loaded, begin, end, data_columns(loaded)), (BEFORE,)))


def changes_of(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    """Return every change of the commits completed in (begin, end], one row for each version of a row.

    `CHANGE_TYPE` is insert, delete, update_preimage or update_postimage. `COMMIT_TIME` is the requested time.
    """
    changes = _changes(session, loaded, begin, end)
    sides = [
        changes.where(f"{side} IS NOT NULL").select(
            f"{side}.*",
            F.when(F.col("op") == "u", F.lit(f"update_{image}")).otherwise(F.lit(alone)).alias(CHANGE_TYPE),
            F.col("ts_ms").alias(COMMIT_TIME),
        )
        for side, image, alone in (("before", "preimage", "delete"), ("after", "postimage", "insert"))
    ]
    return reduce(Frame.unionByName, sides)


def inserts_up_to(session: Session, loaded: LoadedTable, end: str) -> Frame:
    """Return all rows in a table as of a completion time, in the columns of `changes_of`, as inserts."""
    columns = data_columns(loaded)
    request = ScanRequest(query=CompletedUpTo(end), columns=(*columns, META_COLUMNS[0]))
    rows = _frame(session, loaded, request).withColumn(CHANGE_TYPE, F.lit("insert"))
    return rows.withColumnRenamed(META_COLUMNS[0], COMMIT_TIME).select(*_quoted((*columns, CHANGE_TYPE, COMMIT_TIME)))


def no_rows(session: Session, loaded: LoadedTable) -> Frame:
    """Return an empty view of a table."""
    schema = table_schema(loaded)
    names = data_columns(loaded)
    fields = [] if schema is None else [schema.field(name) for name in names]
    return session.createDataFrame([], spark_schema(pa.schema(fields)))


def images_of_changes(
    session: Session, loaded: LoadedTable, begin: str, end: str, columns: Sequence[str]
) -> Frame | pa.Table:
    """Return columns of every row that the commits completed in (begin, end] wrote, replaced or deleted.

    One scan of the changes yields the values before and after each of them; equal rows may be returned once. Few
    changes are read by this process and returned as Arrow data.

    Raises UserError for a column that the table does not have.
    """
    stored = data_columns(loaded)
    missing = next((name for name in columns if name not in stored), None)
    if missing is not None:
        raise UserError(
            f"ingest.group_by {', '.join(columns)}: the table has no column {missing!r}, its columns are "
            f"{', '.join(stored)}.{nearest(missing, stored)}",
            column=missing,
        )
    scan = _change_scan(loaded, begin, end, tuple(columns))
    few = few_distinct_rows(scan, (BEFORE, AFTER))
    return _in_one_task(rows_of_changes(session, scan, (BEFORE, AFTER), distinct=True)) if few is None else few


def groups_of_rows(session: Session, images: Sequence[Frame | pa.Table], columns: Sequence[str]) -> RowGroups:
    """Return the distinct values of columns.

    Raises UserError for a column that a frame does not have.
    """
    few = _distinct_here(images)
    with spark_failures(f"ingest.group_by {', '.join(columns)}"):
        if few is None:
            frames = [one if isinstance(one, Frame) else _frame_of(session, one) for one in images]
            groups = reduce(Frame.unionByName, [frame.select(*_quoted(columns)) for frame in frames]).distinct()
            few = spark_version().to_arrow(groups.limit(_MOST_GROUPS + 1))
        else:
            groups = _frame_of(session, few)
    if few.num_rows > _MOST_GROUPS:
        return RowGroups(columns=tuple(columns), rows=groups)
    parts = []
    for name, column in zip(columns, few.columns, strict=True):
        values = set(column.to_pylist())
        # For other types, values may compare differently from their strings.
        if values and all(type(value) in (str, int, date) for value in values):
            parts.append(In(name, tuple(sorted(values))))
    return RowGroups(
        columns=tuple(columns),
        # Spark gets the size of rows from Arrow, so it joins with them without a shuffle.
        rows=spark_version().from_arrow(session, few, groups.schema),
        where=And(tuple(parts)) if parts else None,
        is_exact=len(columns) == len(parts) == 1,
    )


def _distinct_here(images: Sequence[Frame | pa.Table]) -> pa.Table | None:
    """Return the distinct rows of Arrow data with equal types, or None if Spark has to compare them."""
    tables = [one for one in images if isinstance(one, pa.Table)]
    if len(tables) < len(images) or any(one.schema != tables[0].schema for one in tables):
        return None
    return distinct_rows(pa.concat_tables(tables))


def _frame_of(session: Session, rows: pa.Table) -> Frame:
    return spark_version().from_arrow(session, rows, spark_schema(rows.schema))


def in_groups(rows: Frame, groups: RowGroups) -> Frame:
    """Return the rows whose values of the columns are in `groups`; null equals null.

    Args:
        rows: Rows that meet the condition `groups.where`, if there is one.
        groups: The groups.
    """
    return rows if groups.is_exact else _joined(rows, groups.rows, groups.columns, "left_semi")


def stored_in_groups(session: Session, loaded: LoadedTable, columns: Sequence[str], groups: RowGroups) -> Frame:
    """Return columns of table rows whose values in the group columns are in `groups`."""
    # Spark compares values whose type differs from the column's type.
    same = all(groups.rows.schema[name] == schema_of(loaded, columns)[name] for name in groups.columns)
    request = ScanRequest(query=SNAPSHOT, columns=tuple(columns), where=groups.where if same else None)
    planned = _planned(loaded, request)
    if planned.plan.slices.bytes <= _STORED_HERE:
        rows = _frame_of(session, pa.Table.from_batches(planned.batches(), planned.schema))
    else:
        rows = _planned_frame(session, loaded, planned)
    return in_groups(rows, groups if same else replace(groups, is_exact=False))


def schema_of(loaded: LoadedTable, columns: Sequence[str]) -> Schema:
    """Return columns of a table in the types of Spark."""
    schema = table_schema(loaded)
    assert schema is not None, "the table has columns"
    return spark_schema(pa.schema([schema.field(name) for name in columns]))


def not_among(rows: Frame, others: Frame, columns: Sequence[str]) -> Frame:
    """Return the rows whose values in the columns do not occur in `others`; null equals null."""
    return _joined(rows, others, columns, "left_anti")


def with_deletes(rows: Frame, gone: Frame | None) -> Frame:
    """Return the rows, and the rows of `gone` as deletes; columns of `gone` that `rows` lacks are dropped."""
    is_marked = DELETED_COLUMN in rows.columns
    mark = F.coalesce(F.col(DELETED_COLUMN), F.lit(False)) if is_marked else F.lit(False)
    marked = rows.withColumn(DELETED_COLUMN, mark)
    if gone is None:
        return marked
    names = [name for name in gone.columns if name in rows.columns and name != DELETED_COLUMN]
    # Spark analyzes the whole query again at each call. A column as an SQL string needs fewer calls than a `Column`.
    deletes = gone.selectExpr(*_quoted(names), f"true AS {DELETED_COLUMN}")
    return marked.unionByName(deletes, allowMissingColumns=True)


def _joined(rows: Frame, others: Frame, columns: Sequence[str], how: str) -> Frame:
    # The columns are renamed, because both frames may be derived from the same frame.
    other = others.select(*[F.col(f"`{name}`").alias(f"_lakehouse_{n}") for n, name in enumerate(columns)])
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"_lakehouse_{number}")) for number, name in enumerate(columns)]
    return rows.join(other, reduce(lambda one, two: one & two, same), how)


def _changes(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    return _in_one_task(changes_to_spark(session, _change_scan(loaded, begin, end, data_columns(loaded))))


def _change_scan(loaded: LoadedTable, begin: str, end: str, columns: tuple[str, ...]) -> ChangeScan:
    query = Changes(begin, end)
    return plan_change_read(loaded, query, ScanRequest(query=query, columns=columns))


def _frame(session: Session, loaded: LoadedTable, request: ScanRequest) -> Frame:
    return _planned_frame(session, loaded, _planned(loaded, request))


def _planned(loaded: LoadedTable, request: ScanRequest) -> Scan:
    planned = plan_read(loaded, request)
    assert isinstance(planned, Scan), "reads of changes are planned by `_change_scan`"
    return planned


def _planned_frame(session: Session, loaded: LoadedTable, planned: Scan) -> Frame:
    frame = scan_to_spark(session, with_stored_schemas(loaded, planned))
    return frame.coalesce(1) if planned.plan.slices.bytes <= SMALL_BYTES else frame


def _in_one_task(frame: Frame) -> Frame:
    """Return a small frame in one task."""
    # Rows of one task are joined and grouped without a shuffle, which takes 0.1 s however few rows there are.
    return frame.coalesce(1) if is_small(frame) else frame


def _quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]
