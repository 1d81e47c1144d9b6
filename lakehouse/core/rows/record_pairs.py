"""Compare aligned versions of records: which one survives, and which columns the result provides (DATA-5.2).

Position i of the newer side and position i of the older side are versions of one record.
"""

from __future__ import annotations

import numpy as np

from lakehouse.core.rows.log_entries import DELETE, RECORD, ColumnSets, Control
from lakehouse.model.merge import MergeMode, MergeRule


def newer_wins(rule: MergeRule, newer: Control, older: Control, at_least: np.ndarray) -> np.ndarray:
    """Return the mask of pairs whose newer side survives; `at_least` means that its ordering value is not lower.

    With event time ordering, a delete without ordering value wins over older versions and loses to newer ones, except
    to an entry of a delete block. A custom merger decides between two records; in other cases event time does.
    """
    if rule.mode is MergeMode.COMMIT_TIME_ORDERING:
        return np.ones(len(at_least), dtype=bool)
    wins: np.ndarray = (at_least | newer.default | older.default) & ~((newer.kind == DELETE) & older.default)
    return wins


def both_records(first: Control, second: Control) -> np.ndarray:
    """Return the mask of pairs with two records. Deletes neither take nor provide values."""
    both: np.ndarray = (first.kind == RECORD) & (second.kind == RECORD)
    return both


def merged_columns(high: np.ndarray, low: np.ndarray, both: np.ndarray, sets: ColumnSets) -> np.ndarray:
    """Return `__columns` of merged rows: the union of both sets for two records, otherwise the set of the survivor."""
    result = high.copy()
    at = np.flatnonzero(both & (high != low))
    if not len(at):
        return result
    pairs, which = np.unique(np.stack([high[at], low[at]], axis=1), axis=0, return_inverse=True)
    united = [sets.union(int(one), int(other)) for one, other in pairs]
    result[at] = np.array(united, dtype=high.dtype)[which.ravel()]
    return result
