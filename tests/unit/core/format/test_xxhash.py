"""Tests of XXH64 and XXH32 over whole columns."""

from __future__ import annotations

import base64
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.xxhash import xxh32, xxh64
from tests.support.shared import shared_dir

PRIME32, PRIME64 = 0x9E3779B1, 11400714785074694797
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
# Values of the metadata table are hashed with this seed.
METADATA_SEED = 0xFFFFFFFFDABADABA

seeds = st.sampled_from([0, 1, PRIME32, METADATA_SEED, -1])


def rotate(word: int, bits: int, width: int) -> int:
    mask = (1 << width) - 1
    return ((word << bits) | ((word & mask) >> (width - bits))) & mask


def slow_xxh64(data: bytes, seed: int) -> int:
    """Compute XXH64 of one value, step by step as the public specification describes it."""
    mask = (1 << 64) - 1

    def lane_of(word: int) -> int:
        return rotate(word * P64[1] & mask, 31, 64) * P64[0] & mask

    position = 0
    if len(data) >= 32:
        lanes = [(seed + P64[0] + P64[1]) & mask, (seed + P64[1]) & mask, seed & mask, (seed - P64[0]) & mask]
        while position + 32 <= len(data):
            for index in range(4):
                word = int.from_bytes(data[position : position + 8], "little")
                lanes[index] = rotate((lanes[index] + word * P64[1]) & mask, 31, 64) * P64[0] & mask
                position += 8
        total = sum(rotate(lane, bits, 64) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            total = ((total ^ lane_of(lane)) * P64[0] + P64[3]) & mask
    else:
        total = (seed + P64[4]) & mask
    total = (total + len(data)) & mask
    while position + 8 <= len(data):
        word = int.from_bytes(data[position : position + 8], "little")
        total = (rotate(total ^ lane_of(word), 27, 64) * P64[0] + P64[3]) & mask
        position += 8
    if position + 4 <= len(data):
        word = int.from_bytes(data[position : position + 4], "little")
        total = (rotate(total ^ (word * P64[0] & mask), 23, 64) * P64[1] + P64[2]) & mask
        position += 4
    for byte in data[position:]:
        total = rotate(total ^ (byte * P64[4] & mask), 11, 64) * P64[0] & mask
    total = (total ^ (total >> 33)) * P64[1] & mask
    total = (total ^ (total >> 29)) * P64[2] & mask
    return total ^ (total >> 32)


def slow_xxh32(data: bytes, seed: int) -> int:
    """Compute XXH32 of one value, step by step as the public specification describes it."""
    mask = (1 << 32) - 1
    position = 0
    if len(data) >= 16:
        lanes = [(seed + P32[0] + P32[1]) & mask, (seed + P32[1]) & mask, seed & mask, (seed - P32[0]) & mask]
        while position + 16 <= len(data):
            for index in range(4):
                word = int.from_bytes(data[position : position + 4], "little")
                lanes[index] = rotate((lanes[index] + word * P32[1]) & mask, 13, 32) * P32[0] & mask
                position += 4
        total = sum(rotate(lane, bits, 32) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    else:
        total = (seed + P32[4]) & mask
    total = (total + len(data)) & mask
    while position + 4 <= len(data):
        word = int.from_bytes(data[position : position + 4], "little")
        total = rotate((total + word * P32[2]) & mask, 17, 32) * P32[3] & mask
        position += 4
    for byte in data[position:]:
        total = rotate((total + byte * P32[4]) & mask, 11, 32) * P32[0] & mask
    total = (total ^ (total >> 15)) * P32[1] & mask
    total = (total ^ (total >> 13)) * P32[2] & mask
    return total ^ (total >> 16)


def sanity_buffer(size: int) -> bytes:
    """Return the buffer on which the reference implementation's self-test is defined."""
    generator, buffer = PRIME32, bytearray()
    for _ in range(size):
        buffer.append(generator >> 56)
        generator = generator * PRIME64 & ((1 << 64) - 1)
    return bytes(buffer)


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x02CC5D05),
        (b"", PRIME32, 0x36B78AE7),
        (b"a", 0, 0x550D7456),
        (b"abc", 0, 0x32D153FF),
        (sanity_buffer(1), 0, 0xCF65B03E),
        (sanity_buffer(14), 0, 0x1208E7E2),
        (sanity_buffer(222), 0, 0x5BD11DBD),
    ],
)
def test_xxh32_returns_the_published_value_for_a_published_vector(data: bytes, seed: int, expected: int) -> None:
    assert xxh32(pa.array([data], pa.binary()), seed).tolist() == [expected]


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"", PRIME32, 0xAC75FDA2929B17EF),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (sanity_buffer(1), 0, 0xE934A84ADB052768),
        (sanity_buffer(14), 0, 0x8282DCC4994E35C8),
        (sanity_buffer(222), 0, 0xB641AE8CB691C174),
    ],
)
def test_xxh64_returns_the_published_value_for_a_published_vector(data: bytes, seed: int, expected: int) -> None:
    assert xxh64(pa.array([data], pa.binary()), seed).tolist() == [expected]


def test_xxh64_equals_the_key_hashes_that_hudi_wrote() -> None:
    vectors = json.loads((shared_dir() / "fixtures/hudi_metadata/keys.json").read_text())["hash64"]

    hashes = xxh64(pa.array(list(vectors)), METADATA_SEED)

    assert [base64.b64encode(int(value).to_bytes(8, "big")).decode() for value in hashes] == list(vectors.values())


@given(values=st.lists(st.binary(max_size=140), max_size=12), seed=seeds)
def test_hashes_equal_the_scalar_algorithm_on_random_bytes(values: list[bytes], seed: int) -> None:
    column = pa.array(values, pa.binary())

    assert xxh64(column, seed).tolist() == [slow_xxh64(value, seed) for value in values]
    assert xxh32(column, seed).tolist() == [slow_xxh32(value, seed) for value in values]


@given(values=st.lists(st.text(max_size=40), max_size=8))
def test_hashes_of_text_are_those_of_its_utf8_bytes_in_every_string_type(values: list[str]) -> None:
    expected = [slow_xxh64(value.encode(), 0) for value in values]

    for kind in (pa.string(), pa.large_string()):
        assert xxh64(pa.array(values, kind), 0).tolist() == expected
    for kind in (pa.binary(), pa.large_binary()):
        assert xxh64(pa.array([value.encode() for value in values], kind), 0).tolist() == expected


def test_hashes_cover_all_lengths_up_to_three_stripes() -> None:
    values = [bytes(range(length)) for length in range(100)]
    random.Random(7).shuffle(values)
    column = pa.array(values, pa.binary())

    assert xxh64(column, 5).tolist() == [slow_xxh64(value, 5) for value in values]
    assert xxh32(column, 5).tolist() == [slow_xxh32(value, 5) for value in values]


def test_hashes_read_slices_and_chunks_from_their_own_offset() -> None:
    values = [f"key-{index}" * (index % 9) for index in range(60)]
    chunks = pa.chunked_array(
        [pa.array(values[:7]).slice(3), pa.array([], pa.string()), pa.array(values[7:]).slice(1, 20)]
    )

    expected = values[3:7] + values[8:28]
    assert xxh64(chunks, 0).tolist() == [slow_xxh64(value.encode(), 0) for value in expected]
    assert xxh32(chunks, 0).tolist() == [slow_xxh32(value.encode(), 0) for value in expected]


def test_hashes_of_many_rows_equal_those_of_single_rows() -> None:
    values = [f"{index:x}" * (index % 11) for index in range(40_000)]
    column = pa.array(values)

    picked = [*random.Random(3).sample(range(len(values)), 200), 16_383, 16_384, 32_768]
    assert xxh64(column, 0)[picked].tolist() == [slow_xxh64(values[row].encode(), 0) for row in picked]
    assert xxh32(column, 0)[picked].tolist() == [slow_xxh32(values[row].encode(), 0) for row in picked]


def test_hashes_of_no_values_are_empty_arrays() -> None:
    assert xxh64(pa.array([], pa.string()), 0).dtype == np.uint64
    assert xxh32(pa.chunked_array([], pa.binary()), 0).dtype == np.uint32


@pytest.mark.parametrize("column", [pa.array(["a", None]), pa.array([1, 2])])
def test_hashes_are_refused_for_nulls_and_for_other_types(column: pa.Array) -> None:
    with pytest.raises(ValueError, match="Cannot hash"):
        xxh64(column, 0)
