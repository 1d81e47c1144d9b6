"""Options of the index: how a write finds the file group of an incoming key."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.model.index_type import (
    BLOOM_MOVES,
    BUCKET_ENGINE,
    CONSISTENT_HASHING,
    INDEX_TYPE,
    INDEX_TYPES,
    RECORD_MOVES,
    SIMPLE,
    SIMPLE_MOVES,
    IndexType,
    KeyLookup,
    index_type,
    key_lookup,
)
from lakehouse.spec.options.option import option
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, HASH_FIELD, NUM_BUCKETS, REGEX, RULE_TYPE, parse_rules

MAX_NUM_BUCKETS = "hoodie.bucket.index.max.num.buckets"
MIN_NUM_BUCKETS = "hoodie.bucket.index.min.num.buckets"
SPLIT_THRESHOLD = "hoodie.bucket.index.split.threshold"
MERGE_THRESHOLD = "hoodie.bucket.index.merge.threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPolicy:
    """Which index a table uses. The options of the bucket index are fixed when the table is created."""

    type: str = option(
        INDEX_TYPE,
        SIMPLE.name,
        "Index that finds the file group of a key.",
        choices=tuple(INDEX_TYPES),
    )
    simple_moves: bool = option(
        SIMPLE_MOVES,
        True,
        "Global simple index: move a row whose partition changed (true) or update it where it is (false).",
    )
    bloom_moves: bool = option(
        BLOOM_MOVES,
        True,
        "Global bloom index: move a row whose partition changed (true) or update it where it is (false).",
    )
    bloom_metadata: bool = option(
        "hoodie.bloom.index.use.metadata",
        True,
        "Bloom indexes: read the filters of base files from the metadata table, if it has them; else from the files. "
        "On a local disk they are always read from the files, which costs less.",
    )
    bloom_ranges: bool = option(
        "hoodie.bloom.index.prune.by.ranges",
        True,
        "Bloom indexes: skip base files whose range of record keys, which the metadata table has, holds no key of the "
        "batch. Their footers are not read. False is cheaper if keys are random, as UUIDs are.",
    )
    record_moves: bool = option(
        RECORD_MOVES,
        False,
        "Global record index: move a row whose partition changed (true) or update it where it is (false).",
    )
    buckets: int = option(NUM_BUCKETS, 0, "Bucket index: number of file groups per partition.")
    hash_fields: str = option(HASH_FIELD, "", "Bucket index: key fields that are hashed, comma separated; default all.")
    expressions: str = option(
        EXPRESSIONS,
        "",
        "Bucket index: partitions with another number of buckets, as pattern,number;pattern,number. The first pattern "
        "that is found in the path of a partition applies.",
    )
    rule_type: str = option(RULE_TYPE, REGEX, "Bucket index: syntax of these patterns.", choices=(REGEX,))
    engine: str = option(
        BUCKET_ENGINE,
        "SIMPLE",
        "Bucket index: a number of buckets per partition (SIMPLE), or ranges of hash values that split and merge as "
        "they grow and shrink, for merge-on-read tables (CONSISTENT_HASHING).",
        choices=("SIMPLE", CONSISTENT_HASHING),
    )
    max_buckets: int = option(
        MAX_NUM_BUCKETS, 0, "Consistent hashing: maximum number of buckets per partition; 0 means no limit."
    )
    min_buckets: int = option(
        MIN_NUM_BUCKETS,
        0,
        f"Consistent hashing: a partition does not merge into fewer buckets; 0 is {NUM_BUCKETS}.",
    )
    split_threshold: float = option(
        SPLIT_THRESHOLD, 2.0, "Consistent hashing: a bucket splits above this multiple of the maximum file size."
    )
    merge_threshold: float = option(
        MERGE_THRESHOLD,
        0.2,
        "Consistent hashing: neighbouring buckets merge if they are together below this multiple of the largest file "
        "size.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for expressions that do not parse."""
        parse_rules(self.expressions)
        if self.engine == CONSISTENT_HASHING and self.expressions.strip():
            raise SettingError(
                f"option {EXPRESSIONS} is for {BUCKET_ENGINE}=SIMPLE; with {CONSISTENT_HASHING} each partition begins "
                f"with {NUM_BUCKETS} buckets, which split and merge",
                setting=EXPRESSIONS,
            )
        if self.merge_threshold >= self.split_threshold:
            raise SettingError(
                f"option {MERGE_THRESHOLD}={self.merge_threshold} must be less than "
                f"{SPLIT_THRESHOLD}={self.split_threshold}: otherwise merged buckets would split again",
                setting=MERGE_THRESHOLD,
            )

    @property
    def index_type(self) -> IndexType:
        """The index type for the values of `type` and `engine`, with its properties."""
        return index_type(self.type, self.engine)

    @property
    def hashed_fields(self) -> tuple[str, ...]:
        """The key fields that the bucket index hashes; empty for all."""
        return tuple(name.strip() for name in self.hash_fields.split(",") if name.strip())

    def lookup(self, record_key: tuple[str, ...], *, is_partitioned: bool) -> KeyLookup:
        """Return how a writer with these options finds the file group of a key in a table with this record key."""
        columns = self.hashed_fields or record_key
        return key_lookup(self.index_type, is_partitioned=is_partitioned, buckets=str(self.buckets), columns=columns)

    @property
    def moves_rows(self) -> bool:
        """Whether a row whose partition changed moves to its new partition; always false without a global index."""
        values = {SIMPLE_MOVES: self.simple_moves, BLOOM_MOVES: self.bloom_moves, RECORD_MOVES: self.record_moves}
        return values.get(self.index_type.moves_option, False)
