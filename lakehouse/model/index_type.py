"""The index types of tables: their names in `hoodie.index.type` and their properties.

The implementations are in `core.index`; `core.operations.placement.registry` maps each type to the placement that uses
its implementation. Specs and options read the properties of an `IndexType` instead of comparing names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The option and table property that names the index type.
INDEX_TYPE = "hoodie.index.type"
SIMPLE_MOVES = "hoodie.simple.index.update.partition.path"
BLOOM_MOVES = "hoodie.bloom.index.update.partition.path"
RECORD_MOVES = "hoodie.record.index.update.partition.path"
#: The option and table property that names the engine of the bucket index.
BUCKET_ENGINE = "hoodie.index.bucket.engine"
CONSISTENT_HASHING = "CONSISTENT_HASHING"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexType:
    """One type of index, as `hoodie.index.type` names it.

    Attributes:
        name: The value of the option, upper case.
        is_global: A record key is unique in the whole table. Otherwise it is unique in each partition.
        uses_filters: Key ranges and bloom filters of the files exclude files before their keys are read (bloom).
        stores_locations: The metadata table stores the file group of each key (record index). If `is_global` there is
            one index for the table, otherwise one for each partition.
        hashes_keys: The hash of the key determines the file group (bucket).
        has_ring: The buckets are ranges of hash values, which split and merge (consistent hashing). Otherwise each
            partition has a number of buckets, and file ids begin with the number of the bucket.
        moves_option: The option that determines whether a row moves to the partition of its update; global indexes have
            one.
    """

    name: str
    is_global: bool = False
    hashes_keys: bool = False
    uses_filters: bool = False
    stores_locations: bool = False
    moves_option: str = ""
    has_ring: bool = False

    @property
    def label(self) -> str:
        """The name for people."""
        return f"{self.name.lower()}, consistent hashing" if self.has_ring else self.name.lower()


SIMPLE = IndexType(name="SIMPLE")
GLOBAL_SIMPLE = IndexType(name="GLOBAL_SIMPLE", is_global=True, moves_option=SIMPLE_MOVES)
BLOOM = IndexType(name="BLOOM", uses_filters=True)
GLOBAL_BLOOM = IndexType(name="GLOBAL_BLOOM", is_global=True, uses_filters=True, moves_option=BLOOM_MOVES)
RECORD_INDEX = IndexType(name="RECORD_INDEX", is_global=True, stores_locations=True, moves_option=RECORD_MOVES)
RECORD_LEVEL_INDEX = IndexType(name="RECORD_LEVEL_INDEX", stores_locations=True)
BUCKET = IndexType(name="BUCKET", hashes_keys=True)
#: The index type BUCKET with the engine CONSISTENT_HASHING.
CONSISTENT_BUCKET = IndexType(name="BUCKET", hashes_keys=True, has_ring=True)

#: The types that this product can write with, by name. RECORD_INDEX has a second name since Hudi 1.1.
INDEX_TYPES: Mapping[str, IndexType] = {
    **{index.name: index for index in (SIMPLE, GLOBAL_SIMPLE, BLOOM, GLOBAL_BLOOM, RECORD_INDEX)},
    "GLOBAL_RECORD_LEVEL_INDEX": RECORD_INDEX,
    RECORD_LEVEL_INDEX.name: RECORD_LEVEL_INDEX,
    BUCKET.name: BUCKET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """How a writer finds the file group of a key: writers with equal ways, buckets and columns find each other's rows.

    Attributes:
        label: The name of the index for people.
        way: Equal for indexes that find the same file group.
        buckets: The number of buckets as a string; empty without bucket index.
        columns: The hashed columns; empty without bucket index.
    """

    label: str
    way: tuple[bool, ...]
    buckets: str = ""
    columns: tuple[str, ...] = ()


def key_lookup(index: IndexType, *, is_partitioned: bool, buckets: str, columns: tuple[str, ...]) -> KeyLookup:
    """Return the look-up of an index; `buckets` and `columns` count for a bucket index only."""
    way = (index.hashes_keys, index.has_ring, index.is_global and is_partitioned)
    if not index.hashes_keys:
        return KeyLookup(label=index.label, way=way)
    return KeyLookup(label=index.label, way=way, buckets=buckets, columns=columns)


def index_type(name: str, engine: str = "") -> IndexType:
    """Return the index type called `name`, in any case, with the bucket engine `engine`.

    Tables of Hudi may name a type that is not in `INDEX_TYPES`. Hudi's names of global indexes begin with `GLOBAL`.
    """
    upper = name.strip().upper()
    if upper == BUCKET.name and engine.strip().upper() == CONSISTENT_HASHING:
        return CONSISTENT_BUCKET
    return INDEX_TYPES.get(upper) or IndexType(name=upper, is_global=upper.startswith("GLOBAL"))


def stored_index_type(properties: Mapping[str, str], default: str = "") -> IndexType:
    """Return the index type that the properties of a table name; the type `default` if they name none."""
    return index_type(properties.get(INDEX_TYPE, default), properties.get(BUCKET_ENGINE, ""))
