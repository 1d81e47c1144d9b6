"""Consistent hashing: the hash of a key, and the ring of nodes with the hash ranges of a partition (MDT-12.3).

record key --> values of the hash fields, joined --> XXH32 & 0x7fffffff --> first node with value >= hash
                                                                           (none: the first node)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hashing_metadata import (
    DELETE,
    LARGEST_HASH,
    HashingMetadata,
    HashingNode,
    name_based_id,
)
from lakehouse.core.format.xxhash import xxh32
from lakehouse.core.index.hash.bucket import key_values

Hashes = npt.NDArray[np.int32]


def key_hashes(
    keys: pa.Array | pa.ChunkedArray, *, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]
) -> Hashes:
    """Return the hash of each record key as int32, from 0 to 0x7fffffff.

    With several key fields the values of the hash fields are joined in the order of the key. `__null__` is joined as
    the string "null", and `__empty__` as an empty string.

    Args:
        keys: Record keys without nulls.
        key_fields: The record key fields of the table.
        hash_fields: The key fields that are hashed; all of them if empty.
    """
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    parts = [xxh32(_hashed_text(chunk.cast(pa.string()), key_fields, hash_fields)) for chunk in chunks]
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    return (hashes & np.uint32(LARGEST_HASH)).astype(np.int32)


@dataclass(frozen=True)
class Ring:
    """The nodes of one partition, by value."""

    metadata: HashingMetadata

    @cached_property
    def values(self) -> Hashes:
        """The values of the nodes, ascending."""
        return np.array([node.value for node in self.metadata.nodes], np.int32)

    def places(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return for each hash the position of its node. Hashes above the last value belong to the first node."""
        positions: npt.NDArray[np.int64] = np.searchsorted(self.values, hashes, side="left") % len(self.values)
        return positions

    def node_of(self, value: int) -> HashingNode:
        """Return the node of one hash value."""
        return self.metadata.nodes[int(self.places(np.array([value], np.int32))[0])]

    def node_of_group(self, file_id: str) -> HashingNode | None:
        """Return the node with this file id, or None."""
        return next((node for node in self.metadata.nodes if node.file_id == file_id), None)

    def middle(self, node: HashingNode) -> int | None:
        """Return the hash value at which the range of a node is split, or None if it cannot be split."""
        position = self.metadata.nodes.index(node)
        previous = self.metadata.nodes[position - 1].value
        wrap = 0 if previous < node.value else LARGEST_HASH + 1
        middle = ((previous + node.value + wrap) >> 1) & LARGEST_HASH
        return None if middle in (previous, node.value) else middle

    def are_neighbours(self, first: HashingNode, second: HashingNode) -> bool:
        """Return whether the range of `second` follows the range of `first`. The first range follows the last one."""
        nodes = self.metadata.nodes
        return len(nodes) > 1 and nodes[(nodes.index(first) + 1) % len(nodes)] == second

    def resized(self, instant: str, children: Iterable[HashingNode]) -> Ring:
        """Return the ring after the resize at `instant`, whose plan has these child nodes."""
        nodes = {node.value: node for node in self.metadata.nodes}
        for child in children:
            if child.tag == DELETE:
                nodes.pop(child.value, None)
            else:
                nodes[child.value] = HashingNode(value=child.value, prefix=child.prefix)
        ordered = tuple(nodes[value] for value in sorted(nodes))
        sequence = self.metadata.sequence + 1
        return Ring(replace(self.metadata, instant=instant, sequence=sequence, nodes=ordered))

    def renewed(self, instant: str) -> Ring:
        """Return the ring with new groups, after the replacecommit `instant` replaced all present groups."""
        partition, nodes = self.metadata.partition, list[HashingNode]()
        for node in self.metadata.nodes:
            # A retried attempt of the replacecommit gets the same ids.
            prefix = name_based_id(f"{instant}|{node.value}|{partition}".encode())
            nodes.append(HashingNode(value=node.value, prefix=prefix))
        sequence = self.metadata.sequence + 1
        return Ring(replace(self.metadata, instant=instant, sequence=sequence, nodes=tuple(nodes)))


def _hashed_text(keys: pa.Array, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]) -> pa.Array:
    if len(key_fields) == 1:
        return keys
    values = key_values(keys, key_fields)
    chosen = [index for index, name in enumerate(key_fields) if name in hash_fields or not hash_fields]
    return pc.binary_join_element_wise(*(_joined_text(values.field(index)) for index in chosen), "")


def _joined_text(values: pa.Array) -> pa.Array:
    nulls, empties = pc.equal(values, "__null__"), pc.equal(values, "__empty__")
    return pc.if_else(nulls, "null", pc.if_else(empties, "", values))
