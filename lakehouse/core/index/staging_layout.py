"""How an index needs the rows of a batch: by partition and key, by bucket, by hash, or with large values apart."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.table.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLayout:
    """The layout of staged rows; without arguments they are only divided by partition.

    Attributes:
        buckets: Rows are divided by bucket: the numbers of buckets per partition (bucket index).
        hash_order: Rows are ordered by the hash of their keys (consistent hashing).
        hash_fields: The key fields that are hashed; all if empty.
        spread_column: The column whose values are counted, and whose large values are staged apart; empty for none.
        spread_large: The large values of that column.
    """

    buckets: BucketRules | None = None
    hash_order: bool = False
    hash_fields: tuple[str, ...] = ()
    spread_column: str = ""
    spread_large: tuple[str, ...] = ()

    @property
    def hashes_keys(self) -> bool:
        """Whether the hash of a key determines its file group."""
        return self.buckets is not None or self.hash_order
