"""Hashing metadata of the bucket index with consistent hashing: the nodes of a partition, as JSON (MDT-12.1, MDT-12.2).

    .hoodie/.bucket_index/consistent_hashing_metadata/<partition>/<instant>.hashing_meta
                                                                  <instant>.commit         empty marker

Instant 00000000000000 is the initial state. It is computed from the number of buckets and the partition path, so that
concurrent writers create the same bytes. Each later file belongs to a replacecommit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.document import parse_json

HASHING_METADATA = ".hoodie/.bucket_index/consistent_hashing_metadata"
INITIAL_INSTANT = "00000000000000"
#: Hash values are from 0 to this value.
LARGEST_HASH = 0x7FFF_FFFF
NORMAL, REPLACE, DELETE = "NORMAL", "REPLACE", "DELETE"
_META, _COMMIT = ".hashing_meta", ".commit"
_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingNode:
    """A node of the ring: the maximum hash in its range, and the prefix of its file group's id."""

    value: int
    prefix: str
    tag: str = NORMAL

    @property
    def file_id(self) -> str:
        """The id of the node's file group."""
        return f"{self.prefix}-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashingMetadata:
    """The nodes of a partition from `instant` on, by value. `buckets` is the initial number of nodes."""

    partition: str
    instant: str
    buckets: int
    sequence: int
    nodes: tuple[HashingNode, ...]


def metadata_folder(partition: str) -> str:
    """Return the folder of a partition's hashing metadata."""
    return f"{HASHING_METADATA}/{partition}" if partition else HASHING_METADATA


def metadata_path(partition: str, instant: str) -> str:
    """Return the path of the hashing metadata for `instant`, relative to the table."""
    return f"{metadata_folder(partition)}/{instant}{_META}"


def marker_path(partition: str, instant: str) -> str:
    """Return the path of the marker that makes the hashing metadata of `instant` valid."""
    return f"{metadata_folder(partition)}/{instant}{_COMMIT}"


def instants_of(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return, from the file names in a folder, the instants with hashing metadata and the instants with a marker."""
    listed = tuple(names)
    metadata = {name.removesuffix(_META) for name in listed if name.endswith(_META)}
    markers = {name.removesuffix(_COMMIT) for name in listed if name.endswith(_COMMIT)}
    return frozenset(filter(str.isdecimal, metadata)), frozenset(filter(str.isdecimal, markers))


def initial_metadata(partition: str, buckets: int) -> HashingMetadata:
    """Return the initial hashing metadata of a partition with this number of buckets."""
    if not 0 < buckets <= LARGEST_HASH:
        raise UserError(f"consistent hashing needs 1 to {LARGEST_HASH} buckets, not {buckets}", buckets=buckets)
    step = -(-LARGEST_HASH // buckets)
    values = [min(step * number, LARGEST_HASH) for number in range(1, buckets + 1)]
    nodes = [
        HashingNode(value=value, prefix=_initial_prefix(previous, value, partition))
        for previous, value in zip((0, *values), values, strict=False)
    ]
    return HashingMetadata(
        partition=partition, instant=INITIAL_INSTANT, buckets=buckets, sequence=0, nodes=tuple(nodes)
    )


def name_based_id(content: bytes) -> str:
    """Return the name-based UUID (version 3) of `content`, as Java's `UUID.nameUUIDFromBytes` does."""
    digest = bytearray(hashlib.md5(content, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def encode_hashing_metadata(metadata: HashingMetadata) -> bytes:
    """Return the bytes that Hudi writes."""
    fields = {
        "version": _VERSION,
        "partitionPath": metadata.partition,
        "instant": metadata.instant,
        "numBuckets": metadata.buckets,
        "seqNo": metadata.sequence,
    }
    lines = [f"  {json.dumps(name)} : {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    nodes = _nodes_text(metadata.nodes, "  ")
    return ("{\n" + ",\n".join([*lines, f'  "nodes" : {nodes}']) + "\n}").encode()


def decode_hashing_metadata(data: bytes, path: str) -> HashingMetadata:
    """Decode hashing metadata; raise CorruptTableError with `path` if it is invalid."""
    try:
        document = parse_json(data)
        metadata = HashingMetadata(
            partition=str(document["partitionPath"]),
            instant=str(document["instant"]),
            buckets=int(document["numBuckets"]),
            sequence=int(document["seqNo"]),
            nodes=tuple(sorted((_node(node) for node in document["nodes"]), key=lambda node: node.value)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"{path} is not hashing metadata of a bucket index: {error!r}", path=path) from error
    values = [node.value for node in metadata.nodes]
    if not values or len(set(values)) < len(values) or not 0 <= values[0] <= values[-1] <= LARGEST_HASH:
        raise CorruptTableError(f"{path} has invalid hash values {values[:5]}: a ring needs distinct ones", path=path)
    return metadata


def encode_nodes(nodes: Iterable[HashingNode]) -> str:
    """Return nodes as the string that clustering plans contain."""
    return _nodes_text(tuple(nodes), "")


def decode_nodes(text: str) -> tuple[HashingNode, ...]:
    """Return the nodes in a clustering plan; raise CorruptTableError if the string is invalid."""
    try:
        return tuple(_node(node) for node in parse_json(text.encode()))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"a clustering plan has invalid hash nodes: {text[:120]!r}: {error!r}") from error


def _node(document: dict[str, Any]) -> HashingNode:
    return HashingNode(value=int(document["value"]), prefix=str(document["fileIdPrefix"]), tag=str(document["tag"]))


def _nodes_text(nodes: tuple[HashingNode, ...], indent: str) -> str:
    texts = []
    for node in nodes:
        fields = {"value": node.value, "fileIdPrefix": node.prefix, "tag": node.tag}
        lines = (f"{indent}  {json.dumps(name)} : {json.dumps(value)}" for name, value in fields.items())
        texts.append("{\n" + ",\n".join(lines) + f"\n{indent}}}")
    return "[ " + ", ".join(texts) + " ]" if texts else "[ ]"


def _initial_prefix(previous: int, value: int, partition: str) -> str:
    return name_based_id(previous.to_bytes(8, "big") + value.to_bytes(8, "big") + partition.encode())
