"""Options of the index: how a write finds the file group of an incoming key."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.index_type import (
    BLOOM_MOVES,
    INDEX_TYPE,
    INDEX_TYPES,
    SIMPLE,
    SIMPLE_MOVES,
    IndexType,
    index_type,
)
from lakehouse.spec.bucket_rules import EXPRESSIONS, HASH_FIELD, NUM_BUCKETS, REGEX, RULE_TYPE, parse_rules
from lakehouse.spec.options.option import option


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
    buckets: int = option(NUM_BUCKETS, 0, "Bucket index: file groups per partition.")
    hash_fields: str = option(HASH_FIELD, "", "Bucket index: key fields that are hashed, comma separated; default all.")
    expressions: str = option(
        EXPRESSIONS,
        "",
        "Bucket index: partitions with another number of buckets, as pattern,number;pattern,number. The first pattern "
        "that is found in the path of a partition applies.",
    )
    rule_type: str = option(RULE_TYPE, REGEX, "Bucket index: syntax of these patterns.", choices=(REGEX,))

    def __post_init__(self) -> None:
        """Raise UserError for expressions that do not parse."""
        parse_rules(self.expressions)

    @property
    def index_type(self) -> IndexType:
        """The index type that `type` names, with its properties."""
        return index_type(self.type)

    @property
    def moves_rows(self) -> bool:
        """Whether a row whose partition changed moves to its new partition; always false without a global index."""
        values = {SIMPLE_MOVES: self.simple_moves, BLOOM_MOVES: self.bloom_moves}
        return values.get(self.index_type.moves_option, False)
