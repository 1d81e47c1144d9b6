"""Divide staged rows, which are ordered by the hash of their keys, into ranges of hash values (MDT-12.3).

Rows are staged before it is known which partitions they belong to, and an attempt that is repeated may find other
buckets. So runs are staged in the order of the hash only, and each attempt divides them without writing them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.core.files.stage.staging import KEY, StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.hashing_metadata import LARGEST_HASH
from lakehouse.core.index.consistent_hashing import key_hashes
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.model.attempt import Attempt


def divide_run(
    context: WriteContext, cuts: Mapping[str, tuple[int, ...]], _attempt: Attempt, run: StagedRun
) -> StagedRun:
    """Return the run with one entry per range of hash values; `bucket` of an entry is the last value of its range.

    Args:
        context: The settings of the write.
        cuts: The last values of ranges by partition, ascending; a last range up to the maximum hash is added.
        run: A run whose entries are ordered by hash, and have either only upserts or only deletes.
    """
    entries = []
    with StagedReader(context, run.path) as reader:
        for entry in run.entries:
            keys = reader.slice(entry.offset, entry.rows, [KEY]).column(KEY)
            hashes = hashes_of(context, keys)
            lasts = np.unique(np.array([*cuts[entry.partition], LARGEST_HASH], np.int32))
            ends = np.searchsorted(hashes, lasts, side="right")
            starts = np.append(0, ends[:-1])
            for number in np.flatnonzero(ends > starts).tolist():
                rows = int(ends[number] - starts[number])
                entries.append(
                    replace(
                        entry,
                        bucket=int(lasts[number]),
                        offset=entry.offset + int(starts[number]),
                        rows=rows,
                        deletes=rows if entry.deletes else 0,
                    )
                )
    return replace(run, entries=tuple(entries))


def hashes_of(context: WriteContext, keys: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return the hash of each record key; see `key_hashes`."""
    return key_hashes(keys, key_fields=context.keys.record_key_fields, hash_fields=context.layout.hash_fields)
