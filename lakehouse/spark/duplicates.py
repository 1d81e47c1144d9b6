"""Drops rows of events that were delivered more than once.

Among the rows of one key, in time order, a row is dropped if a row of the table lies within the window around it, or if
the last kept row of the batch lies within the window before it. A row without a time or without a part of its key is
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from lakehouse.core.rows.list_offsets import with_offsets
from lakehouse.errors import UserError, nearest
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import Frame

_MICROS = "_lakehouse_micros"
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The columns that identify an event, the column of its time, and the window in seconds."""

    keys: tuple[str, ...]
    time: str
    within_s: int


def check_columns(frame: Frame, window: Window) -> None:
    """Raise UserError for a column that the rows lack, and for a time that is neither a timestamp nor a date."""
    for name in (*window.keys, window.time):
        if name not in frame.columns:
            raise UserError(
                f"ingest.deduplicate: column {name!r} is not among the columns of the rows."
                f"{nearest(name, frame.columns)} There are: {', '.join(frame.columns)}.",
                column=name,
            )
    kind = frame.schema[window.time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType):
        raise UserError(
            f"ingest.deduplicate: column {window.time!r} is {kind.simpleString()}; the time of an event must be a "
            "timestamp or a date",
            column=window.time,
        )


def condition_on_stored(frame: Frame, window: Window) -> str | None:
    """Return the condition on stored rows that may be in the window of a row, or None if no row has a time."""
    moment = F.col(window.time).cast("timestamp")
    reach = F.expr(f"INTERVAL {window.within_s} SECONDS")
    form = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
    bounds = [F.date_format(F.min(moment) - reach, form), F.date_format(F.max(moment) + reach, form)]
    with spark_failures("reading the times of the rows"):
        row = frame.agg(*bounds).head()
    if row is None or row[0] is None:
        return None
    first, last = (text[:10] if isinstance(frame.schema[window.time].dataType, DateType) else text for text in row)
    return f"{window.time} >= '{first}' AND {window.time} <= '{last}'"


def without_stored(frame: Frame, stored: Frame, window: Window) -> Frame:
    """Drop the rows for which `stored` contains a row with the same key within the window, before or after them."""
    names = [f"{_MICROS}_{number}" for number in range(len(window.keys))]
    others = stored.select(*(F.col(key).alias(name) for key, name in zip(window.keys, names, strict=True)), window.time)
    others = others.select(*names, _micros(window.time).alias(f"{_MICROS}_stored")).distinct()
    same = [F.col(_quoted(key)) == F.col(name) for key, name in zip(window.keys, names, strict=True)]
    near = F.abs(F.col(_MICROS) - F.col(f"{_MICROS}_stored")) <= window.within_s * _SECOND
    timed = frame.withColumn(_MICROS, _micros(window.time))
    return timed.join(others, reduce(and_, [*same, near]), "left_anti").drop(_MICROS)


def without_repeated(frame: Frame, window: Window) -> Frame:
    """Drop the rows for which an earlier row with the same key within the window is kept."""
    keys = [F.col(_quoted(key)) for key in window.keys]
    timed = frame.withColumn(_MICROS, _micros(window.time))
    ordered = timed.repartition(*keys).sortWithinPartitions(*keys, _MICROS)
    filtered = ordered.mapInArrow(partial(_kept_batches, window.keys, window.within_s * _SECOND), timed.schema)
    return filtered.drop(_MICROS)


def _micros(time: str) -> Any:
    return F.unix_micros(F.col(_quoted(time)).cast("timestamp"))


def _kept_batches(keys: Sequence[str], within: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    keeper = RepeatedRows(within)
    for batch in with_offsets(batches):
        if len(batch):
            yield batch.filter(keeper.kept([batch.column(key) for key in keys], batch.column(_MICROS)))


class RepeatedRows:
    """Finds the rows to keep in batches that are sorted by key and time; the rows of a key may span batches."""

    def __init__(self, within: int) -> None:
        self._within = within
        self._key: list[pa.Scalar] | None = None
        self._last: int | None = None

    def kept(self, keys: Sequence[pa.Array], times: pa.Array) -> pa.Array:
        """Return for each row whether it is kept.

        The first rows of all keys are processed together, then the second rows of all keys, and so on.
        """
        count = len(times)
        has_all = np.logical_and.reduce([np.asarray(column.is_valid()) for column in (*keys, times)])
        is_first = np.ones(count, np.bool_)
        is_first[1:] = ~np.logical_and.reduce([_equals_previous(column) for column in keys])
        starts = np.flatnonzero(is_first)
        sizes = np.diff(np.append(starts, count))
        moments = np.asarray(pc.fill_null(times, 0)).astype(np.int64)
        last = np.zeros(len(starts), np.int64)
        has_last = np.zeros(len(starts), np.bool_)
        if self._key is not None and self._last is not None and self._key == [column[0] for column in keys]:
            last[0], has_last[0] = self._last, True
        result = np.zeros(count, np.bool_)
        groups, step = np.arange(len(starts)), 0
        while len(groups):
            rows = starts[groups] + step
            is_new = ~has_last[groups] | (moments[rows] > last[groups] + self._within)
            result[rows] = is_new | ~has_all[rows]
            moved = is_new & has_all[rows]
            last[groups[moved]], has_last[groups[moved]] = moments[rows[moved]], True
            step += 1
            groups = groups[sizes[groups] > step]
        self._key = [column[count - 1] for column in keys]
        self._last = int(last[-1]) if has_last[-1] else None
        return pa.array(result)


def _equals_previous(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(pc.fill_null(pc.equal(column.slice(1), column.slice(0, len(column) - 1)), False))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
