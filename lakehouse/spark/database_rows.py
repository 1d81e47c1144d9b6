"""Merges staged chunks and changes of a database table into the rows of one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.storage.protocol import Storage
from lakehouse.spark.bad_records import select_columns
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import INTERNAL, FileSet, Frame, Session, read_files, schema_of_arrow

_PREFIX = "_lakehouse_key_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """The names of the columns that changes have beside those of their rows, and of those that are stored.

    Attributes:
        change: The kind of the change.
        deletes: The kind of deletes.
        position: The place in the log.
        committed: The time of the commit.
        stored: Names of stored columns by the names above.
    """

    change: str
    deletes: str
    position: str
    committed: str
    stored: dict[str, str]


def run_tasks(
    session: Session, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int
) -> list[str]:
    """Run a function on the numbers from 0 to `count` - 1, each in a task, and return the texts of its output."""
    with spark_failures("reading the database"):
        rows = session.range(0, count, 1, max(1, count)).mapInArrow(task, "report string").collect()
    return [str(row[0]) for row in rows]


def staged_rows(session: Session, storage: Storage, groups: Sequence[Sequence[str]], columns: pa.Schema) -> Frame:
    """Return the rows of staged files with exactly these columns; a column that a file lacks is null.

    The files of a group have the same columns.
    """
    schema = schema_of_arrow(columns)
    if not groups:
        return session.createDataFrame([], schema)
    options = {"mergeSchema": "false"}
    sets = [FileSet(storage=storage, paths=tuple(paths), format="parquet", options=options) for paths in groups]
    return read_files(session, sets, schema).drop(*INTERNAL)


def newest_changes(changes: Frame, key: Sequence[str], marks: ChangeColumns, after: int | None) -> Frame:
    """Return the last change of each key, of those after a position; all changes if there is no key."""
    if after is not None:
        changes = changes.where(F.col(marks.position) > after)
    if not key:
        return changes
    latest = Window.partitionBy(*_columns(key)).orderBy(F.col(marks.position).desc())
    rank = "_lakehouse_rank"
    return changes.withColumn(rank, F.row_number().over(latest)).where(F.col(rank) == 1).drop(rank)


def merged_rows(
    chunks: Frame | None, newest: Frame, key: Sequence[str], marks: ChangeColumns, *, seen: int = 0
) -> Frame:
    """Return the rows of a commit with the mark of deletes.

    Args:
        chunks: The rows of chunks; None if there are none.
        newest: The result of `newest_changes`.
        key: The key columns.
        marks: The names of columns.
        seen: All changes up to this position are in the rows of chunks, so they lose against them.
    """
    deleted = (F.col(marks.change) == F.lit(marks.deletes)).alias(DELETED_COLUMN)
    names = [name for name in newest.columns if name not in (marks.change, marks.position, marks.committed)]
    facts = [F.col(name).alias(target) for name, target in marks.stored.items()]
    later, changes = newest, newest
    if chunks is not None and seen:
        later = newest.where(F.col(marks.position) > seen)
        earlier = newest.where(F.col(marks.position) <= seen)
        changes = later.unionByName(without_keys(earlier, chunks, key))
    rows = changes.select(*_columns(names), *facts, deleted)
    if chunks is not None:
        unchanged = without_keys(chunks, later, key)
        nothing = [_null(newest, name).alias(target) for name, target in marks.stored.items()]
        rows = rows.unionByName(unchanged.select(*_columns(names), *nothing, F.lit(False).alias(DELETED_COLUMN)))
    return rows


def selected_rows(rows: Frame, select: Sequence[str]) -> Frame:
    """Return the SQL expressions of a spec over rows with the mark of deletes, which they keep."""
    if not select:
        return rows
    starred = any(text.strip().startswith("*") for text in select)
    return select_columns(rows, (*select, *(() if starred else (DELETED_COLUMN,))))


def without_keys(rows: Frame, others: Frame, key: Sequence[str]) -> Frame:
    """Return the rows whose keys `others` does not have; key columns are never null."""
    if not key:
        return rows
    # Other names, because both frames may descend from the same one.
    other = others.select(*[F.col(_quoted(name)).alias(f"{_PREFIX}{number}") for number, name in enumerate(key)])
    same = [F.col(_quoted(name)) == F.col(f"{_PREFIX}{number}") for number, name in enumerate(key)]
    return rows.join(other, reduce(lambda one, two: one & two, same), "left_anti")


def purged_rows(stored: Frame, source_keys: Frame, newest: Frame, key: Sequence[str]) -> Frame:
    """Return the stored rows whose keys neither the source nor a change of the window has, as deletes.

    `stored` has the key columns, and may have more.
    """
    gone = without_keys(without_keys(stored, source_keys, key), newest, key)
    return gone.withColumn(DELETED_COLUMN, F.lit(True))


def live_rows(rows: Frame) -> Frame:
    """Return the rows that are not deletes."""
    return rows.where(~F.col(DELETED_COLUMN))


def with_more(rows: Frame, more: Frame) -> Frame:
    """Return both; columns that `more` lacks are null."""
    return rows.unionByName(more, allowMissingColumns=True)


def _null(frame: Frame, name: str) -> Column:
    return F.lit(None).cast(frame.schema[name].dataType)


def _columns(names: Iterable[str]) -> list[Column]:
    return [F.col(_quoted(name)) for name in names]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
