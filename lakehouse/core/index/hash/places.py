"""Determines the buckets of stored keys, to validate the files of a table, and the hash ranges of staged rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lakehouse.core.format.hashing_metadata import LARGEST_HASH
from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.index.hash.consistent_hashing import Hashes, Ring, key_hashes
from lakehouse.core.index.write_tasks import StagedEntry
from lakehouse.errors import UserError
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.spec.table.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlaces:
    """The file groups in which keys must be stored. By default a key may be in any file group of its partition.

    Attributes:
        buckets: The bucket counts per partition; None without a simple bucket index.
        rings: The rings of partitions with consistent hashing.
        hash_fields: The key fields that are hashed; all if empty.
        follows_paths: Whether rows are in the partition of their partition columns. With a global index that does not
            move rows, they may stay in another partition.
        in_table: Whether a key is unique in the table, not only in its partition.
    """

    buckets: BucketRules | None = None
    rings: Mapping[str, Ring] = field(default_factory=dict)
    hash_fields: tuple[str, ...] = ()
    follows_paths: bool = True
    in_table: bool = False

    def misplaced(self, file: BaseFile | LogFile, keys: pa.ChunkedArray, key_fields: tuple[str, ...]) -> int:
        """Return the number of keys that do not belong to the bucket of a file; 0 if the file has no bucket number."""
        ring = self.rings.get(file.partition)
        node = None if ring is None else ring.node_of_group(file.file_id)
        try:
            if ring is not None and node is not None:
                hashes = key_hashes(keys, key_fields=key_fields, hash_fields=self.hash_fields)
                return int(np.count_nonzero(ring.places(hashes) != ring.metadata.nodes.index(node)))
            bucket = None if self.buckets is None else _bucket_of(file.file_id)
            if self.buckets is None or bucket is None:
                return 0
            count = self.buckets.of(file.partition)
            buckets = bucket_ids(keys, key_fields=key_fields, hash_fields=self.hash_fields, buckets=count)
        except UserError:
            # Keys of a form that the key fields do not produce belong to no bucket.
            return len(keys)
        return int(np.count_nonzero(buckets != bucket))


def _bucket_of(file_id: str) -> int | None:
    """Return the bucket number of a file id, or None if it has none. A different finding reports that."""
    try:
        return bucket_of(file_id)
    except UserError:
        return None


def entries_by_range(entry: StagedEntry, hashes: Hashes, lasts: Iterable[int]) -> list[StagedEntry]:
    """Split an entry into one entry per range of hash values. The `bucket` of each is the last value of its range.

    Args:
        entry: Rows ordered by hash, either only upserts or only deletes.
        hashes: The hashes of the rows.
        lasts: The last values of the ranges; a last range up to `LARGEST_HASH` is added.
    """
    bounds = np.unique(np.array([*lasts, LARGEST_HASH], np.int32))
    ends = np.searchsorted(hashes, bounds, side="right")
    starts = np.append(0, ends[:-1])
    entries = []
    for number in np.flatnonzero(ends > starts).tolist():
        rows, offset = int(ends[number] - starts[number]), entry.offset + int(starts[number])
        deletes = rows if entry.deletes else 0
        entries.append(replace(entry, bucket=int(bounds[number]), offset=offset, rows=rows, deletes=deletes))
    return entries
