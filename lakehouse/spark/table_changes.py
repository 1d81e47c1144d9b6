"""Reads changes of tables as DataFrames: the newest versions of changed rows, the versions before, and every change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import reduce

import pyarrow as pa
from pyspark.sql import functions as F

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import Changes, CompletedUpTo, Incremental, ScanRequest
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.table.scan import TableScan
from lakehouse.model.predicate import And, In, Predicate
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.sources import Frame, Session
from lakehouse.spec.table_source import CHANGE_TYPE, COMMIT_TIME

#: The largest number of groups that become a condition on the files to read.
_MOST_GROUPS = 1_000


def data_columns(loaded: LoadedTable) -> tuple[str, ...]:
    """Return the columns of a table's views: its data columns without the mark of deletes."""
    schema = table_schema(loaded)
    return tuple(name for name in (schema.names if schema is not None else ()) if name != DELETED_COLUMN)


def rows_up_to(session: Session, loaded: LoadedTable, end: str, where: Predicate | None = None) -> Frame:
    """Return all rows of a table as of a completion time; `where` reduces the files that are read."""
    request = ScanRequest(query=CompletedUpTo(end), columns=data_columns(loaded), where=where)
    return _frame(session, loaded, request)


def changed_rows(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    """Return the newest version of each row that the commits completed in (begin, end] wrote."""
    request = ScanRequest(query=Incremental(begin, end), columns=data_columns(loaded))
    return _frame(session, loaded, request)


def rows_before(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    """Return the versions of rows that the commits completed in (begin, end] replaced or deleted."""
    return _changes(session, loaded, begin, end).where("before IS NOT NULL").select("before.*")


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
    """Return all rows of a table as of a completion time, in the columns of `changes_of`, as inserts."""
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


def groups_of_rows(session: Session, frames: Sequence[Frame], columns: Sequence[str]) -> tuple[Frame, Predicate | None]:
    """Return the distinct values of columns, and a condition that files with these values meet, if they are few.

    Raises UserError for a column that a frame does not have.
    """
    with spark_failures(f"ingest.group_by {', '.join(columns)}"):
        found = reduce(Frame.unionByName, [frame.select(*_quoted(columns)) for frame in frames]).distinct()
        rows = found.limit(_MOST_GROUPS + 1).collect()
    if len(rows) > _MOST_GROUPS:
        return found, None
    parts = []
    for number, name in enumerate(columns):
        values = {row[number] for row in rows}
        # Other types need not compare as their text does.
        if values and all(type(value) in (str, int, date) for value in values):
            parts.append(In(name, tuple(sorted(values))))
    return session.createDataFrame(rows, found.schema), And(tuple(parts)) if parts else None


def in_groups(rows: Frame, groups: Frame, columns: Sequence[str]) -> Frame:
    """Return the rows whose values of the columns are in `groups`; null equals null."""
    return _joined(rows, groups, columns, "left_semi")


def not_among(rows: Frame, others: Frame, columns: Sequence[str]) -> Frame:
    """Return the rows whose values of the columns no row of `others` has; null equals null."""
    return _joined(rows, others, columns, "left_anti")


def with_deletes(rows: Frame, gone: Frame | None) -> Frame:
    """Return the rows, and the rows of `gone` as deletes; columns of `gone` that `rows` lacks are dropped."""
    mark = F.col(DELETED_COLUMN) if DELETED_COLUMN in rows.columns else F.lit(None).cast("boolean")
    marked = rows.withColumn(DELETED_COLUMN, F.coalesce(mark, F.lit(False)))
    if gone is None:
        return marked
    deletes = gone.select(*_quoted([name for name in gone.columns if name in rows.columns and name != DELETED_COLUMN]))
    deletes = deletes.withColumn(DELETED_COLUMN, F.lit(True))
    return marked.unionByName(deletes, allowMissingColumns=True)


def _joined(rows: Frame, others: Frame, columns: Sequence[str], how: str) -> Frame:
    # Other names, because both frames may descend from the same one.
    other = others.select(*[F.col(f"`{name}`").alias(f"_lakehouse_{n}") for n, name in enumerate(columns)]).distinct()
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"_lakehouse_{number}")) for number, name in enumerate(columns)]
    return rows.join(other, reduce(lambda one, two: one & two, same), how)


def _changes(session: Session, loaded: LoadedTable, begin: str, end: str) -> Frame:
    return _frame(session, loaded, ScanRequest(query=Changes(begin, end), columns=data_columns(loaded)))


def _frame(session: Session, loaded: LoadedTable, request: ScanRequest) -> Frame:
    frame: Frame = TableScan(table=loaded, request=request).to_spark(session)
    return frame


def _quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]
