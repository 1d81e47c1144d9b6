"""The registry of placements: maps each index type to its placement, and thereby to its index.

To add an index, declare its type in `model.index_type`, implement `Index` in a module of `core.index`, and add one
entry here. The contract tests (tests/contract/test_index.py) run on every entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lakehouse.core.index.file_index import FileIndex
from lakehouse.core.operations.placement.by_files import EVERYWHERE, ByFiles
from lakehouse.core.operations.placement.by_hash import ByBucket, ByRing
from lakehouse.core.operations.placement.by_location import ByLocation
from lakehouse.core.operations.placement.protocol import Placement
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

_IN_PARTITIONS = ByFiles(FileIndex)

PLACEMENTS: Mapping[IndexType, Placement] = {
    SIMPLE: _IN_PARTITIONS,
    GLOBAL_SIMPLE: EVERYWHERE,
    BLOOM: ByFiles(partial(FileIndex, filters=True), filters=True),
    GLOBAL_BLOOM: ByFiles(partial(FileIndex, global_keys=True, filters=True), global_keys=True, filters=True),
    RECORD_INDEX: ByLocation(
        index=partial(FileIndex, global_keys=True, located=True), global_keys=True, files=EVERYWHERE
    ),
    RECORD_LEVEL_INDEX: ByLocation(index=partial(FileIndex, located=True), files=_IN_PARTITIONS),
    BUCKET: ByBucket(),
    CONSISTENT_BUCKET: ByRing(),
}


def placement_of(index_type: IndexType) -> Placement:
    """Return the placement of an index type. Raises UnsupportedError if it has no implementation."""
    placement = PLACEMENTS.get(index_type)
    if placement is None:
        names = ", ".join(supported.name for supported in PLACEMENTS)
        raise UnsupportedError(f"index type {index_type.name!r} is not supported for writing; supported: {names}")
    return placement
