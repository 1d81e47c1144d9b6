"""Merges staged chunks and changes of a database table into the rows of one commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.storage.protocol import Storage
from lakehouse.spark.bad_records import REASON, mark_bad_records, select_columns
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import CORRUPT, INTERNAL, SOURCE_FILE, FileSet, Frame, Session, read_files, schema_of_arrow
from lakehouse.spark.workers import map_in_arrow

#: The estimated size of a value.
_VALUE_BYTES = 8
_PREFIX = "_lakehouse_key_"
_VALUE = "_lakehouse_value_"
#: Number of tasks per core: the minimum that keeps all cores busy, and the maximum. Between both, a task takes at least
#: this many reads.
_LEAST_TASKS, _MOST_TASKS, _READS_PER_TASK = 2, 4, 10
#: The unavailable columns in rows whose key was changed: the row of the old key has the value.
MOVED = "_moved"
#: The number of the window part that rows are in.
PART = "_part"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """The names of additional columns in changes and in stored changes.

    Attributes:
        change: The kind of the change.
        deletes: The kind of deletes.
        position: The place in the log.
        committed: The time of the commit.
        stored: Names of stored columns by the names above.
        inserts: The kind of inserts.
        unavailable: The names of the columns without a value; empty if the log contains all values.
        unsent: Columns for which some changes contain no value.
    """

    change: str
    deletes: str
    position: str
    committed: str
    stored: dict[str, str]
    inserts: str = "insert"
    unavailable: str = ""
    unsent: tuple[str, ...] = ()

    @property
    def control(self) -> tuple[str, ...]:
        """The names of the columns in changes that do not belong to their rows."""
        return (self.change, self.position, self.committed, *((self.unavailable, MOVED, PART) if self.unsent else ()))


def run_tasks(
    session: Session, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int
) -> list[str]:
    """Run a function on the numbers from 0 to `count` - 1 in tasks, and return the strings in its output.

    If there are many numbers, a task takes several adjacent ones, because its start takes 37 ms of CPU time, like
    20,000 rows.
    """
    cores = session.sparkContext.defaultParallelism
    wanted = max(_LEAST_TASKS * cores, min(count // _READS_PER_TASK, _MOST_TASKS * cores))
    tasks = max(1, min(count, wanted))
    with spark_failures("reading the database"):
        rows = map_in_arrow(session.range(0, count, 1, tasks), task, "report string").collect()
    return [str(row[0]) for row in rows]


def staged_rows(session: Session, storage: Storage, groups: Sequence[Mapping[str, int]], columns: pa.Schema) -> Frame:
    """Return the rows of staged files with exactly these columns; a column that a file lacks is null.

    Each group maps the paths of files with the same columns to their row counts.
    """
    schema = schema_of_arrow(columns)
    if not groups:
        return session.createDataFrame([], schema)
    options = {"mergeSchema": "false"}
    sets = [
        FileSet(
            storage=storage,
            paths=tuple(sizes),
            format="parquet",
            options=options,
            bytes=sum(sizes.values()) * len(columns) * _VALUE_BYTES,
        )
        for sizes in groups
    ]
    return read_files(session, sets, schema).drop(*INTERNAL)


def newest_changes(changes: Frame, key: Sequence[str], marks: ChangeColumns, after: int | None) -> Frame:
    """Return the last change of each key after a position; all changes if there is no key."""
    if after is not None:
        changes = changes.where(F.col(marks.position) > after)
    if not key:
        return changes
    latest = Window.partitionBy(*_columns(key)).orderBy(F.col(marks.position).desc())
    if marks.unsent:
        changes = _with_earlier_values(changes, key, marks)
    rank = "_lakehouse_rank"
    return changes.withColumn(rank, F.row_number().over(latest)).where(F.col(rank) == 1).drop(rank)


def _with_earlier_values(changes: Frame, key: Sequence[str], marks: ChangeColumns) -> Frame:
    """Return changes in which missing values come from the last change of the key that contains them.

    A row that gets its key by a key change does not take values from an earlier row with this key.
    """
    before = Window.partitionBy(*_columns(key)).orderBy(F.col(marks.position)).rowsBetween(Window.unboundedPreceding, 0)
    lacking = F.coalesce(F.col(marks.unavailable), F.array().cast("array<string>"))
    kinds = {column.name: column.dataType for column in changes.schema}
    unknown = F.lit(False).alias("is_known")
    states = []
    for name in marks.unsent:
        nothing = F.struct(unknown, F.lit(None).cast(kinds[name]).alias("value"))
        value = F.struct(F.lit(True).alias("is_known"), F.col(_quoted(name)).alias("value"))
        state = (
            F.when(F.col(marks.change) == marks.deletes, nothing)
            .when(~F.array_contains(lacking, name), value)
            .when(F.col(marks.change) == marks.inserts, nothing)
        )
        states.append(F.last(state, ignorenulls=True).over(before).alias(f"{_VALUE}{name}"))
    with_states = changes.select("*", *states)
    still, moved, values = [], [], {}
    for name in marks.unsent:
        lacks, state = F.array_contains(lacking, name), F.col(_quoted(f"{_VALUE}{name}"))
        is_open = lacks & ~F.coalesce(state.getField("is_known"), F.lit(False))
        still.append(F.when(is_open, F.lit(name)))
        moved.append(F.when(is_open & state.isNotNull(), F.lit(name)))
        values[name] = F.when(lacks, state.getField("value")).otherwise(F.col(_quoted(name))).alias(name)
    return with_states.select(
        *[values.get(name, F.col(_quoted(name))) for name in kinds if name != marks.unavailable],
        F.array_compact(F.array(*still)).alias(marks.unavailable),
        F.array_compact(F.array(*moved)).alias(MOVED),
    )


def _filled(changes: Frame, rows: Frame, key: Sequence[str], marks: ChangeColumns, *, is_newer: bool) -> Frame:
    """Return changes with the values that they lack from rows of the same keys.

    Rows from a later part than the change also fill changes of the key.
    """
    other = rows.select(
        *[F.col(_quoted(name)).alias(f"{_PREFIX}{number}") for number, name in enumerate(key)],
        *[F.col(_quoted(name)).alias(f"{_VALUE}{name}") for name in marks.unsent],
        (F.col(PART) if is_newer else F.lit(0)).alias(_VALUE),
    )
    same = [F.col(_quoted(name)) == F.col(f"{_PREFIX}{number}") for number, name in enumerate(key)]
    joined = changes.join(other, reduce(lambda one, two: one & two, same), "left")
    has_row, lacks, moved = F.col(_VALUE).isNotNull(), F.col(marks.unavailable), F.col(MOVED)
    later = F.col(_VALUE) > F.col(PART)
    fills = {
        name: has_row & F.array_contains(lacks, name) & (later | ~F.array_contains(moved, name))
        for name in marks.unsent
    }
    left = F.array_compact(
        F.array(*[F.when(F.array_contains(lacks, name) & ~fills[name], F.lit(name)) for name in marks.unsent])
    )
    selected = [
        F.when(fills[name], F.col(_quoted(f"{_VALUE}{name}"))).otherwise(F.col(_quoted(name))).alias(name)
        if name in fills
        else (left if name == marks.unavailable else F.col(_quoted(name))).alias(name)
        for name in changes.columns
    ]
    return joined.select(*selected)


def unknown_rows(changes: Frame, marks: ChangeColumns, stored: Collection[str]) -> Frame:
    """Return changes with a missing value that the stored row does not contain.

    Args:
        changes: The newest change of each key, filled from chunks.
        marks: The names of columns.
        kept: The columns whose stored value a placeholder keeps.
    """
    return changes.where(_is_unknown(marks, stored))


def _is_unknown(marks: ChangeColumns, stored: Collection[str]) -> Column:
    lacks = F.col(marks.unavailable)
    names = F.array(*[F.lit(name) for name in stored]).cast("array<string>")
    beyond = F.array_union(F.array_except(lacks, names), F.array_intersect(lacks, F.col(MOVED)))
    return (F.col(marks.change) != marks.deletes) & (F.size(beyond) > 0)


def filled_changes(
    newest: Frame, chunks: Frame | None, fetched: Frame | None, key: Sequence[str], marks: ChangeColumns
) -> Frame:
    """Return the newest changes with the values that they lack from chunks, or from rows that were read for them.

    A chunk has the values of the same row, because no change in the window has another one. It may have been read
    before a change of the key, so it gives no values to rows that got their key by one; `fetched` was read after it.
    """
    if not marks.unsent or not key:
        return newest
    if chunks is not None:
        newest = _filled(newest, chunks, key, marks, is_newer=False)
    return newest if fetched is None else _filled(newest, fetched, key, marks, is_newer=True)


def with_placeholders(changes: Frame, marks: ChangeColumns, stored: Collection[str], placeholder: str) -> Frame:
    """Return changes with a placeholder, for which a reader takes the stored value, instead of each missing value.

    Changes that lack other values are left out: their rows were deleted later.
    """
    kinds = {column.name: column.dataType for column in changes.schema}
    lacks = F.col(marks.unavailable)
    values = {
        name: F.when(F.array_contains(lacks, name), F.lit(placeholder).cast(kinds[name]))
        .otherwise(F.col(_quoted(name)))
        .alias(name)
        for name in stored
    }
    complete = changes.where(~_is_unknown(marks, stored))
    return complete.select(*[values.get(name, F.col(_quoted(name))) for name in kinds])


def with_parts(frames: Mapping[int, Frame]) -> Frame:
    """Return the rows of several parts with the number of their part."""
    numbered = [frame.withColumn(PART, F.lit(number)) for number, frame in frames.items()]
    return reduce(lambda one, other: one.unionByName(other), numbered)


def last_parts(rows: Frame, key: Sequence[str]) -> Frame:
    """Return the rows of the last part that contains their key."""
    latest = Window.partitionBy(*_columns(key)).orderBy(F.col(PART).desc())
    rank = "_lakehouse_rank"
    return rows.withColumn(rank, F.row_number().over(latest)).where(F.col(rank) == 1).drop(rank)


def key_texts(rows: Frame, key: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """Return at most `most` keys of rows as strings."""
    keys = rows.select(*[F.col(_quoted(name)).cast("string") for name in key]).limit(most).collect()
    return [tuple(str(part) for part in row) for row in keys]


def merged_rows(
    chunks: Frame | None, newest: Frame, key: Sequence[str], marks: ChangeColumns, *, seen: int = 0
) -> Frame:
    """Return the rows of a commit with the mark of deletes.

    Args:
        chunks: The rows of chunks; None if there are none. Rows of tables without key are identified by positions.
        newest: The result of `newest_changes`.
        key: The key columns.
        marks: The names of columns.
        seen: The rows of chunks include all changes up to this position, so these rows take precedence over the
            changes.
    """
    deleted = (F.col(marks.change) == F.lit(marks.deletes)).alias(DELETED_COLUMN)
    names = [name for name in newest.columns if name not in marks.control]
    facts = [F.col(name).alias(target) for name, target in marks.stored.items()]
    later, changes = newest, newest
    if chunks is not None and seen:
        later = newest.where(F.col(marks.position) > seen)
        earlier = newest.where(F.col(marks.position) <= seen)
        changes = later.unionByName(without_keys(earlier, chunks, key))
    rows = changes.select(*_columns(names), *facts, deleted)
    if chunks is not None:
        unchanged = without_keys(chunks, later, key)
        nothing = [
            (F.col(name) if name in chunks.columns else _null(newest, name)).alias(target)
            for name, target in marks.stored.items()
        ]
        rows = rows.unionByName(unchanged.select(*_columns(names), *nothing, F.lit(False).alias(DELETED_COLUMN)))
    return rows


def selected_rows(rows: Frame, select: Sequence[str]) -> Frame:
    """Return the SQL expressions of a spec over rows with the mark of deletes, which they keep."""
    if not select:
        return rows
    starred = any(text.strip().startswith("*") for text in select)
    return select_columns(rows, (*select, *(() if starred else (DELETED_COLUMN,))))


def without_keys(rows: Frame, others: Frame, key: Sequence[str]) -> Frame:
    """Return the rows whose keys are not in `others`; key columns are never null."""
    if not key:
        return rows
    # The columns are renamed, because both frames may be derived from the same frame.
    other = others.select(*[F.col(_quoted(name)).alias(f"{_PREFIX}{number}") for number, name in enumerate(key)])
    same = [F.col(_quoted(name)) == F.col(f"{_PREFIX}{number}") for number, name in enumerate(key)]
    return rows.join(other, reduce(lambda one, two: one & two, same), "left_anti")


def keyless_rows(rows: Frame, key: Sequence[str], source: str) -> Frame:
    """Return the rows without a key that are not deletes, as bad records of a source."""
    plain = live_rows(rows).drop(DELETED_COLUMN)
    named = plain.withColumn(CORRUPT, F.lit(None).cast("string")).withColumn(SOURCE_FILE, F.lit(source))
    return mark_bad_records(named, key).where(F.col(REASON).isNotNull())


def purged_rows(stored: Frame, source_keys: Frame, newest: Frame, key: Sequence[str]) -> Frame:
    """Return stored rows as deletes if their keys are neither in the source nor in a change of the window.

    `stored` contains the key columns, and may contain more.
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
