"""The buckets to which stored keys belong, to validate the files of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.errors import UserError
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.spec.table.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlaces:
    """Where keys have to be stored; without arguments a key may be in any file group of its partition.

    Attributes:
        buckets: The numbers of buckets per partition; None without numbered buckets.
        rings: The rings of partitions with consistent hashing.
        hash_fields: The key fields that are hashed; all if empty.
        follows_paths: Rows are in the partition that their partition columns name. With a global index that does not
            move rows they may stay in another one.
        in_table: A key is unique in the table, not only in its partition.
    """

    buckets: BucketRules | None = None
    rings: Mapping[str, Ring] = field(default_factory=dict)
    hash_fields: tuple[str, ...] = ()
    follows_paths: bool = True
    in_table: bool = False

    def misplaced(self, file: BaseFile | LogFile, keys: pa.ChunkedArray, key_fields: tuple[str, ...]) -> int:
        """Return the number of keys that do not belong to the bucket of a file; 0 without buckets or bucket number."""
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
    """Return the bucket number of a file id; None if it has none, which another finding reports."""
    try:
        return bucket_of(file_id)
    except UserError:
        return None
