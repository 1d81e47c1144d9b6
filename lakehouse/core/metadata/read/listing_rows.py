"""Merged rows of the index `files` in an order in which views of a large table share their columns (MDT-4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.metadata import keys
from lakehouse.core.state.data_files import LISTING


def ordered_rows(rows: pa.Table) -> pa.Table:
    """Return `FILE_ROWS` ordered by key and name, those of files of the table first."""
    ranked = rows.select(["key", "name"]).append_column("dead", pa.array(~_live(rows)))
    order = np.asarray(pc.sort_indices(ranked, [(name, "ascending") for name in ("dead", "key", "name")]))
    return rows if np.array_equal(order, np.arange(len(order))) else rows.take(pa.array(order)).combine_chunks()


def listing_of_rows(rows: pa.Table) -> pa.Table:
    """Return the files of the table among `FILE_ROWS` as `LISTING`; ordered rows are not copied."""
    is_live = _live(rows)
    count = int(np.count_nonzero(is_live))
    live = rows.slice(0, count) if is_live[:count].all() else rows.filter(pa.array(is_live))
    return pa.table([keys.paths(live.column("key")), live.column("name"), live.column("size_bytes")], schema=LISTING)


def _live(rows: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are files of the table: neither tombstones nor the names of partitions."""
    is_file = pc.not_equal(rows.column("key"), keys.ALL_PARTITIONS)
    return np.asarray(pc.and_(pc.invert(rows.column("deleted")), is_file)).astype(bool)
