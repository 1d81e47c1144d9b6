"""How an index needs the rows of a batch, and where it may have stored rows with their keys.

Rows are staged by partition and key, by bucket, in the order of the hash of their keys, or with large values apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.index.hash.consistent_hashing import key_hashes
from lakehouse.core.index.write_tasks import StagedEntry, StagedRun
from lakehouse.spec.table.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLayout:
    """The layout of staged rows; without arguments they are only grouped by partition.

    Attributes:
        global_keys: A key is unique in the table, so it is looked up in all partitions.
        buckets: Rows are grouped by bucket: the numbers of buckets per partition (bucket index).
        hash_order: Rows are ordered by the hash of their keys (consistent hashing).
        hash_fields: The key fields that are hashed; all if empty.
        spread_column: The column whose values are counted, and whose large values are staged apart; empty for none.
        spread_large: The large values of that column.
    """

    global_keys: bool = False
    buckets: BucketRules | None = None
    hash_order: bool = False
    hash_fields: tuple[str, ...] = ()
    spread_column: str = ""
    spread_large: tuple[str, ...] = ()

    @property
    def hashes_keys(self) -> bool:
        """Whether the hash of a key determines its file group."""
        return self.buckets is not None or self.hash_order

    def searched(self, partitions: Iterable[str]) -> list[str] | None:
        """Return the partitions in which keys of rows of `partitions` may be stored, sorted; None for all."""
        return None if self.global_keys else sorted(set(partitions))

    def scope(self, partition: str) -> str:
        """Return a name that is equal for the partitions in which the same keys may be stored."""
        return "" if self.global_keys else partition

    def entries_for(self, entries: Iterable[StagedEntry], partition: str) -> tuple[StagedEntry, ...]:
        """Return the entries whose keys may be stored in the partition."""
        return tuple(entry for entry in entries if self.global_keys or entry.partition == partition)

    def entries_for_group(
        self, entries: Iterable[StagedEntry], partition: str, file_id: str
    ) -> tuple[StagedEntry, ...]:
        """Return the entries whose keys may be stored in the file group."""
        bucket = self.bucket_of_group(file_id)
        return tuple(e for e in entries if self.global_keys or (e.partition, e.bucket) == (partition, bucket))

    def bucket_of_group(self, file_id: str) -> int:
        """Return the bucket of staged entries for the rows of a file group; -1 if rows are not staged by bucket."""
        return -1 if self.buckets is None else bucket_of(file_id)

    def identity(self, key: str, path: str) -> tuple[str, ...]:
        """Return the columns that identify a record, of the columns of its key and of its partition path."""
        return (key,) if self.global_keys else (key, path)

    @property
    def finds_deleted_keys(self) -> bool:
        """Whether a key that a log deletes determines the file group of a new row with this key."""
        return not self.global_keys

    def parts(self, pieces: Sequence[int]) -> Sequence[int]:
        """Return the rows of each entry of a run that was written in pieces, which are ordered each by itself."""
        return pieces if self.hash_order else (sum(pieces),)

    def hash_positions(
        self, keys: pa.Array | pa.ChunkedArray, key_fields: tuple[str, ...]
    ) -> npt.NDArray[np.int64] | None:
        """Return the positions of keys in the order of their hashes; None if rows are not staged in this order."""
        if not self.hash_order:
            return None
        return np.argsort(key_hashes(keys, key_fields=key_fields, hash_fields=self.hash_fields), kind="stable")

    def run(self, path: str, entries: tuple[StagedEntry, ...], rows: int, size_bytes: int) -> StagedRun:
        """Return a staged run in this layout; see `StagedRun` for the arguments."""
        return StagedRun(path=path, entries=entries, rows=rows, size_bytes=size_bytes, buckets=self.buckets)

    def fits(self, run: StagedRun) -> bool:
        """Return whether the rows of a run were staged by the buckets of this layout."""
        return run.buckets == self.buckets
