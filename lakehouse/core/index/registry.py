"""The registry of indexes: maps each index type to its implementation.

To add an index, declare its type in `model.index_type`, implement `Index` in a module of this package, and add one
entry here. The contract tests (tests/contract/test_index.py) run on every entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from lakehouse.core.index.file_index import FileIndex
from lakehouse.core.index.hash.bucket_index import BucketIndex
from lakehouse.core.index.hash.consistent_index import ConsistentBucketIndex
from lakehouse.core.index.protocol import Index, IndexSetup
from lakehouse.errors import UnsupportedError
from lakehouse.model.index_type import (
    BLOOM,
    BUCKET,
    CONSISTENT_BUCKET,
    GLOBAL_BLOOM,
    GLOBAL_SIMPLE,
    RECORD_INDEX,
    RECORD_LEVEL_INDEX,
    SIMPLE,
    IndexType,
)

INDEXES: Mapping[IndexType, Callable[[IndexSetup], Index]] = {
    SIMPLE: FileIndex,
    GLOBAL_SIMPLE: partial(FileIndex, global_keys=True),
    BLOOM: partial(FileIndex, filters=True),
    GLOBAL_BLOOM: partial(FileIndex, global_keys=True, filters=True),
    RECORD_INDEX: partial(FileIndex, global_keys=True, located=True),
    RECORD_LEVEL_INDEX: partial(FileIndex, located=True),
    BUCKET: BucketIndex,
    CONSISTENT_BUCKET: ConsistentBucketIndex,
}


def create_index(index_type: IndexType, setup: IndexSetup) -> Index:
    """Return the index of type `index_type` for one write. Raises UnsupportedError if it has no implementation."""
    implementation = INDEXES.get(index_type)
    if implementation is None:
        names = ", ".join(known.name for known in INDEXES)
        raise UnsupportedError(f"index type {index_type.name!r} is not supported for writing; supported: {names}")
    return implementation(setup)
