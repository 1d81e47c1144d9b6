"""Two versions of a record side by side: which survives, and what is known of the result (DATA-5.2).

Arrays are aligned: position i of the newer side and of the older side are versions of one record.
"""

from __future__ import annotations

import numpy as np

from lakehouse.core.rows.log_entries import DELETE, RECORD, ColumnSets, Control
from lakehouse.model.merge import MergeMode, MergeRule


def newer_wins(rule: MergeRule, newer: Control, older: Control, at_least: np.ndarray) -> np.ndarray:
    """Return the mask of the pairs whose newer side survives; `at_least`: its ordering value is not the lower one.

    By event time a delete without ordering value beats what is older and yields to what is newer, except to the entry
    of a delete block, which does not take its place. A merger decides between two records; elsewhere event time does.
    """
    if rule.mode is MergeMode.COMMIT_TIME_ORDERING:
        return np.ones(len(at_least), dtype=bool)
    wins: np.ndarray = (at_least | newer.default | older.default) & ~((newer.kind == DELETE) & older.default)
    return wins


def both_records(first: Control, second: Control) -> np.ndarray:
    """Return the mask of the pairs of two records: deletes neither give nor take values."""
    both: np.ndarray = (first.kind == RECORD) & (second.kind == RECORD)
    return both


def merged_columns(high: np.ndarray, low: np.ndarray, both: np.ndarray, sets: ColumnSets) -> np.ndarray:
    """Return the `__columns` of merged rows: the union of the two sets where both are records, else the survivor's."""
    result = high.copy()
    at = np.flatnonzero(both & (high != low))
    if not len(at):
        return result
    pairs, which = np.unique(np.stack([high[at], low[at]], axis=1), axis=0, return_inverse=True)
    united = [sets.union(int(one), int(other)) for one, other in pairs]
    result[at] = np.array(united, dtype=high.dtype)[which.ravel()]
    return result
