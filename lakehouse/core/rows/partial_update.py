"""Partial updates: determine the values that the surviving version of a record takes from the other version (DATA-5.3).

A value is replaced by the other version's value in three cases: its row does not provide the column (IS_PARTIAL
blocks), it is null and the table ignores defaults, or it is the table's marker for unavailable values. Meta columns
always come from the surviving version. Avro defaults other than null are ignored, because Hudi compares them by
identity, which works for null only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.log_entries import CONTROL, ColumnSets
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode


@dataclass(frozen=True, slots=True)
class Gaps:
    """Masks of the replaceable values in one column: `open` marks all, `missing` marks rows without the column."""

    missing: np.ndarray
    open: np.ndarray

    def of(self, rows: np.ndarray) -> Gaps:
        """Return the gaps of the rows at these positions."""
        return Gaps(self.missing[rows], self.open[rows])


def gaps(rows: pa.Table, columns: np.ndarray, rule: MergeRule, sets: ColumnSets) -> dict[str, Gaps]:
    """Return the gaps of `rows` by column, without columns that have none. `columns` is their `__columns`."""
    by_column = {}
    none = np.zeros(rows.num_rows, dtype=bool)
    for name in rows.column_names:
        if name in META_COLUMNS or name in CONTROL.names:
            continue
        lacking = np.array([names is not None and name not in names for names in sets.sets])
        missing = lacking[columns] if lacking.any() else none
        replaceable = missing | _yields(rows.column(name), rule)
        if replaceable.any():
            by_column[name] = Gaps(missing, replaceable)
    return by_column


def from_lower(high: Gaps | None, low: Gaps | None, fill: np.ndarray) -> np.ndarray:
    """Return the mask of pairs that take the value of the lower version. `fill` is the mask of record pairs."""
    taken = np.zeros(len(fill), dtype=bool) if high is None else fill & high.open
    return taken if low is None else taken & ~low.missing


def _yields(column: pa.ChunkedArray, rule: MergeRule) -> np.ndarray:
    if rule.mode is MergeMode.CUSTOM or rule.partial is PartialMode.NONE:
        return np.zeros(len(column), dtype=bool)
    if rule.partial is PartialMode.IGNORE_DEFAULTS:
        return np.asarray(column.is_null().to_numpy(), dtype=bool)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _is_text(kind):
        return np.zeros(len(column), dtype=bool)
    plain = column.cast(kind)
    same = pc.equal(plain, pa.scalar(rule.unavailable.encode() if _is_bytes(kind) else rule.unavailable, kind))
    return np.asarray(pc.fill_null(same, False).to_numpy(), dtype=bool)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_bytes(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
