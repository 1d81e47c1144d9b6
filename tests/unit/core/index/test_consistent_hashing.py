"""Tests of hashing metadata and of the ring of a partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hashing_metadata import (
    DELETE,
    INITIAL_INSTANT,
    LARGEST_HASH,
    REPLACE,
    HashingMetadata,
    HashingNode,
    decode_hashing_metadata,
    decode_nodes,
    encode_hashing_metadata,
    encode_nodes,
    initial_metadata,
    instants_of,
)
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.errors import CorruptTableError, UserError
from tests.support.shared import fixtures

hashes = st.integers(0, LARGEST_HASH)


def stored() -> list[Path]:
    """Return the hashing metadata that Hudi wrote."""
    found = sorted(fixtures("hudi_metadata/bucket").rglob("*.hashing_meta"))
    assert len(found) == 8
    return found


def test_hashing_metadata_of_hudi_is_decoded_and_encoded_to_the_same_bytes() -> None:
    for path in stored():
        metadata = decode_hashing_metadata(path.read_bytes(), path.name)
        assert (metadata.partition, metadata.instant) == (path.parent.name, path.stem)
        assert encode_hashing_metadata(metadata) == path.read_bytes()


def test_initial_nodes_are_those_that_hudi_created_for_the_partition() -> None:
    initial = [path for path in stored() if path.stem == INITIAL_INSTANT]
    assert len(initial) == 4
    for path in initial:
        assert encode_hashing_metadata(initial_metadata(path.parent.name, 2)) == path.read_bytes()


def test_ring_after_the_first_split_of_hudi_has_the_values_that_hudi_wrote() -> None:
    ring = Ring(initial_metadata("part=a", 2))
    children = []
    for node in ring.metadata.nodes:
        middle = ring.middle(node)
        assert middle is not None
        children += [
            HashingNode(value=middle, prefix=f"l{node.value}", tag=REPLACE),
            HashingNode(value=node.value, prefix=f"r{node.value}", tag=REPLACE),
        ]
    path = next(p for p in stored() if p.parent.name == "part=a" and p.stem == "20261122124945255")
    expected = decode_hashing_metadata(path.read_bytes(), path.name)
    resized = ring.resized(expected.instant, children).metadata
    assert [node.value for node in resized.nodes] == [node.value for node in expected.nodes]
    assert (resized.buckets, resized.sequence) == (expected.buckets, expected.sequence) == (2, 1)
    assert {node.tag for node in resized.nodes} == {"NORMAL"}


def test_nodes_of_a_plan_survive_a_round_trip() -> None:
    nodes = (
        HashingNode(value=536870911, prefix="b7b9393f-4d0e-4cdc-bb46-215aa0b1eb78", tag=REPLACE),
        HashingNode(value=1073741824, prefix="c9487a7f-f008-4cc8-8d27-4d64aad74913", tag=DELETE),
    )
    assert decode_nodes(encode_nodes(nodes)) == nodes
    assert encode_nodes(nodes).startswith('[ {\n  "value" : 536870911,\n  "fileIdPrefix" : "b7b9393f-')


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b'{"partitionPath":"p","instant":"0","numBuckets":1,"seqNo":0,"nodes":[]}'],
)
def test_decoding_of_invalid_hashing_metadata_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=r"p/0\.hashing_meta"):
        decode_hashing_metadata(data, "p/0.hashing_meta")


def test_initial_metadata_refuses_a_number_of_buckets_below_one() -> None:
    with pytest.raises(UserError, match="1 to 2147483647 buckets, not 0"):
        initial_metadata("p", 0)


def test_instants_of_a_folder_are_those_of_metadata_and_markers() -> None:
    names = ["00000000000000.hashing_meta", "2026.commit", "2026.hashing_meta", "x.hashing_meta", ".2026.tmp"]
    assert instants_of(names) == (frozenset({INITIAL_INSTANT, "2026"}), frozenset({"2026"}))


@given(buckets=st.integers(1, 300), partition=st.text(max_size=20))
def test_initial_nodes_cover_all_hash_values_with_distinct_groups(buckets: int, partition: str) -> None:
    nodes = initial_metadata(partition, buckets).nodes
    assert len(nodes) == len({node.prefix for node in nodes}) == buckets
    assert nodes[-1].value == LARGEST_HASH
    assert initial_metadata(partition, buckets).nodes == nodes


@given(values=st.sets(hashes, min_size=1, max_size=9), looked_up=st.lists(hashes, max_size=20))
def test_each_hash_belongs_to_the_first_node_with_a_value_that_is_not_smaller(
    values: set[int], looked_up: list[int]
) -> None:
    ring = ring_of(sorted(values))
    places = ring.places(np.array(looked_up, np.int32)).tolist()
    for value, place in zip(looked_up, places, strict=True):
        expected = min((one for one in values if one >= value), default=min(values))
        assert ring.metadata.nodes[place].value == ring.node_of(value).value == expected


@given(values=st.sets(hashes, min_size=1, max_size=6), looked_up=hashes, data=st.data())
def test_split_and_merge_of_a_node_move_only_the_hash_values_of_its_range(
    values: set[int], looked_up: int, data: st.DataObject
) -> None:
    ring = ring_of(sorted(values))
    node = data.draw(st.sampled_from(ring.metadata.nodes))
    middle = ring.middle(node)
    before = ring.node_of(looked_up)
    if middle is None:
        return
    left = HashingNode(value=middle, prefix="left", tag=REPLACE)
    right = HashingNode(value=node.value, prefix="right", tag=REPLACE)
    split = ring.resized("2", [left, right])
    after = split.node_of(looked_up)
    assert (after.prefix in ("left", "right")) == (before == node)
    assert len(split.metadata.nodes) == len(values) + 1
    merged = split.resized(
        "3",
        [HashingNode(value=middle, prefix="", tag=DELETE), HashingNode(value=node.value, prefix="new", tag=REPLACE)],
    )
    assert [one.value for one in merged.metadata.nodes] == sorted(values)
    assert (merged.node_of(looked_up).prefix == "new") == (before == node)
    assert merged.metadata.sequence == 2


def test_neighbours_include_the_last_and_the_first_node() -> None:
    ring = ring_of([10, 20, LARGEST_HASH])
    first, second, last = ring.metadata.nodes
    assert ring.are_neighbours(first, second)
    assert ring.are_neighbours(last, first)
    assert not ring.are_neighbours(first, last)


def test_key_hashes_join_the_hashed_fields_of_the_key() -> None:
    keys = pa.array(["a:1,b:x", "a:__null__,b:y", "a:__empty__,b:z"])
    joined = key_hashes(keys, key_fields=("a", "b"), hash_fields=())
    assert joined.tolist() == key_hashes(pa.array(["1x", "nully", "z"]), key_fields=("k",), hash_fields=()).tolist()
    one = key_hashes(keys, key_fields=("a", "b"), hash_fields=("b",))
    assert one.tolist() == key_hashes(pa.array(["x", "y", "z"]), key_fields=("k",), hash_fields=()).tolist()
    assert (joined >= 0).all()


def ring_of(values: list[int]) -> Ring:
    """Return a ring with nodes of these values."""
    nodes = tuple(HashingNode(value=value, prefix=f"n{value}") for value in values)
    return Ring(HashingMetadata(partition="p", instant=INITIAL_INSTANT, buckets=len(values), sequence=0, nodes=nodes))
