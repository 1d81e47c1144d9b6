"""Property tests of log files: complete blocks are found, damage raises an error, and codecs round trip."""

from __future__ import annotations

import io
import struct
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes, encode_deletes
from lakehouse.core.format.log.record_positions import decode_positions, encode_positions
from lakehouse.core.format.log.scan import settle_blocks
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from tests.support.delete_list import Entry, read_entries, write_entries
from tests.support.tables import examples

INSTANTS = st.sampled_from([f"2025010{day}000000000" for day in range(1, 7)])
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
#: Contents with parts of blocks, but without a complete block.
CONTENTS = st.lists(st.sampled_from([b"#HUDI#", b"#HUD", b"\0" * 7, b"\x01", b"abc" * 3]), max_size=6).map(b"".join)
DATA_KINDS = (BlockType.AVRO_DATA, BlockType.PARQUET_DATA, BlockType.HFILE_DATA, BlockType.DELETE)


@st.composite
def encoded_blocks(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([*DATA_KINDS, BlockType.COMMAND]))
    headers = {BlockHeader.INSTANT_TIME: draw(INSTANTS)}
    if kind is BlockType.COMMAND:
        headers |= {BlockHeader.COMMAND_BLOCK_TYPE: "0", BlockHeader.TARGET_INSTANT_TIME: draw(INSTANTS)}
        return encode_block(kind, headers, b"")
    optional = st.sampled_from([BlockHeader.RECORD_POSITIONS, BlockHeader.IS_PARTIAL, BlockHeader.BLOCK_IDENTIFIER])
    headers |= {BlockHeader.SCHEMA: draw(TEXTS)} | draw(st.dictionaries(optional, TEXTS))
    return encode_block(kind, headers, draw(CONTENTS))


def bounds(blocks: list[bytes]) -> list[int]:
    return np.cumsum([len(block) for block in blocks]).tolist()


def scanned(data: bytes) -> list[LogBlock]:
    return scan_blocks(io.BytesIO(data))


@examples(100)
@given(st.lists(encoded_blocks(), max_size=5))
def test_log_blocks_round_trip(blocks: list[bytes]) -> None:
    data = b"".join(blocks)
    result = scanned(data)
    again = [encode_block(b.kind, b.headers, data[b.offset : b.offset + b.length]) for b in result]
    assert again == blocks


@examples(200)
@given(st.lists(encoded_blocks(), min_size=1, max_size=4), st.data())
def test_a_truncated_file_keeps_its_complete_blocks(blocks: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(blocks)
    cut = data.draw(st.integers(0, len(whole)))
    complete = sum(end <= cut for end in bounds(blocks))
    result = scanned(whole[:cut])
    assert result[:complete] == scanned(b"".join(blocks[:complete]))
    assert all(block.kind is BlockType.CORRUPT for block in result[complete:])
    rest = cut - len(b"".join(blocks[:complete]))
    assert bool(result[complete:]) == (rest >= len(b"#HUDI#"))


@examples(300)
@given(st.lists(encoded_blocks(), min_size=1, max_size=4), st.data())
def test_damage_does_not_hide_earlier_blocks(blocks: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(blocks))
    first = data.draw(st.integers(0, len(whole) - 1))
    for at in {first, *data.draw(st.lists(st.integers(first, len(whole) - 1), max_size=3))}:
        whole[at] ^= data.draw(st.integers(1, 255))
    # A block is complete only if the magic of the next block or the end of the file follows it.
    complete = sum(end + len(b"#HUDI#") <= first for end in bounds(blocks))
    try:
        result = scanned(bytes(whole))
    except CorruptTableError:
        return
    assert result[:complete] == scanned(b"".join(blocks[:complete]))


@examples(100)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_random_bytes_are_corrupt_or_skipped(garbage: bytes, more: bytes) -> None:
    for data in (garbage, b"#HUDI#" + garbage, b"#HUDI#" + struct.pack(">q", len(garbage)) + garbage + more):
        try:
            result = scanned(data)
        except CorruptTableError:
            continue
        assert all(0 <= block.offset <= block.offset + block.length <= len(data) for block in result)


@st.composite
def slices(draw: st.DrawFn) -> list[LogBlock]:
    """Draw blocks of the instants 1 to 6: data, rollbacks, and at most two log compactions of earlier instants."""
    result = []
    for _ in range(draw(st.integers(0, 10))):
        instant = str(draw(st.integers(1, 6)))
        headers, kind = {BlockHeader.INSTANT_TIME: instant}, BlockType.AVRO_DATA
        if draw(st.integers(0, 5)) == 0:
            kind = BlockType.COMMAND
            target = str(draw(st.integers(1, 6)))
            headers |= {BlockHeader.TARGET_INSTANT_TIME: target, BlockHeader.COMMAND_BLOCK_TYPE: "0"}
        elif draw(st.integers(0, 9)) == 0:
            kind, headers = BlockType.CORRUPT, {}
        result.append(LogBlock(kind=kind, headers=headers, offset=len(result), length=0))
    for merged in ("7", "8")[: draw(st.integers(0, 2))]:
        times = draw(st.lists(st.sampled_from("123456" if merged == "7" else "1234567"), min_size=1, unique=True))
        compacted = {BlockHeader.INSTANT_TIME: merged, BlockHeader.COMPACTED_BLOCK_TIMES: ",".join(times)}
        for _ in range(draw(st.integers(1, 2))):
            result.append(LogBlock(kind=BlockType.AVRO_DATA, headers=compacted, offset=len(result), length=0))
    return result


def scanner_2(blocks: list[LogBlock], visible: str) -> list[LogBlock]:
    """Return the blocks in the order of Hudi's Java scanner, a direct translation of it (DATA-4.6)."""
    blocks_of: dict[str, list[LogBlock]] = {}
    ordered: list[str] = []
    for block in blocks:
        if block.kind is BlockType.CORRUPT:
            continue
        if block.kind is BlockType.COMMAND:
            if block.target in ordered:
                ordered.remove(block.target)
            blocks_of.pop(block.target or "", None)
        elif block.instant in visible:
            if block.instant not in blocks_of:
                ordered.append(block.instant)
            blocks_of.setdefault(block.instant, []).append(block)
    queue: deque[LogBlock] = deque()
    included: set[str] = set()
    final: dict[str, str] = {}
    for instant in reversed(ordered):
        first = blocks_of[instant][0]
        if first.compacted:
            for original in first.compacted:
                final[original] = final.get(instant, instant)
            continue
        shown = final.get(instant, instant)
        if shown not in included:
            queue.extend(reversed(blocks_of[shown]))
            included.add(shown)
    return list(reversed(queue))


@examples(300)
@given(slices(), st.sampled_from(["12345678", "123456", "2345678", "1345678"]))
def test_settled_blocks_equal_those_of_javas_scanner(blocks: list[LogBlock], visible: str) -> None:
    settled = [block for _, block in settle_blocks(list(enumerate(blocks)), lambda instant: instant in visible)]
    expected = scanner_2(blocks, visible)
    if any(block.compacted for block in settled):
        assert settled == expected
    else:
        # Without log compactions the blocks stay in file order, so only the set of blocks is compared.
        assert sorted(settled, key=lambda b: b.offset) == sorted(expected, key=lambda b: b.offset)
        if not any(block.compacted for block in blocks):
            assert [b.offset for b in settled] == sorted(b.offset for b in settled)


KEYS = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from("\x00\x01\x02\x04"), max_size=12)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(1, 2**31 - 1) | st.integers(-(2**31), -1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): KEYS,
    pa.timestamp("us"): st.integers(-(2**62), 2**62),
    pa.date32(): st.integers(1, 2**20),
    pa.decimal128(30, 15): st.decimals(-(10**14), 10**14, places=15),
}


@examples(200)
@given(st.sampled_from(list(VALUES)), st.sampled_from(["", "x", "\x02\x02a", "region=\u00e9/y"]), st.data())
def test_delete_blocks_round_trip(kind: pa.DataType, partition: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(KEYS, VALUES[kind]), max_size=8))
    keys, ordering = pa.array([key for key, _ in rows], pa.string()), pa.array([value for _, value in rows], kind)
    read = decode_deletes(encode_deletes(keys, partition, ordering), [kind])
    assert read.keys == keys and read.ordering == (ordering,) and not read.default.any()
    assert read.partitions.to_pylist() == [partition] * len(rows)
    plain = encode_deletes(keys, partition)
    assert read_entries(plain) == [(key, partition, ("Int", 0)) for key, _ in rows]
    assert decode_deletes(plain, [kind]).default.all()


WRAPPED = st.one_of(
    st.none(),
    st.tuples(st.just("Boolean"), st.booleans()),
    st.tuples(st.just("Int"), st.integers(-2, 2)),
    st.tuples(st.just("Long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("Float"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("Double"), st.floats(allow_nan=False)),
    st.tuples(st.just("String"), KEYS),
    st.tuples(st.just("Decimal"), st.binary(min_size=1, max_size=13)),
    st.tuples(st.just("TimestampMicros"), st.integers(0, 9)),
)
ARRAYS = st.tuples(st.just("Array"), st.lists(WRAPPED | st.tuples(st.just("LocalDate"), st.integers(0, 9)), max_size=3))
ENTRIES = st.lists(st.tuples(KEYS, st.none() | KEYS, WRAPPED | ARRAYS), max_size=8)


@examples(300)
@given(ENTRIES)
def test_delete_blocks_of_another_writer_with_mixed_values_are_decoded(entries: list[Entry]) -> None:
    read = decode_deletes(write_entries(entries), [pa.int64()])
    assert read.keys.to_pylist() == [key for key, _, _ in entries]
    assert read.partitions.to_pylist() == [partition for _, partition, _ in entries]
    values = [value[1] if value is not None and value[0] == "Long" else None for _, _, value in entries]
    assert read.ordering[0].to_pylist() == values
    assert read.default.tolist() == [value is None for value in values]
    pairs = decode_deletes(write_entries(entries), [pa.int32(), pa.string()])
    expected = [_pair(value) for _, _, value in entries]
    assert list(zip(*(column.to_pylist() for column in pairs.ordering), strict=True)) == expected


def _pair(value: tuple[str, Any] | None) -> tuple[int | None, str | None]:
    if value is None or value[0] != "Array" or [item and item[0] for item in value[1]] != ["Int", "String"]:
        return None, None
    return value[1][0][1], value[1][1][1]


@examples(300)
@given(ENTRIES, st.data())
def test_damaged_delete_blocks_are_decoded_or_corrupt(entries: list[Entry], data: st.DataObject) -> None:
    content = bytearray(write_entries(entries))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
        with pytest.raises(CorruptTableError):
            decode_deletes(bytes(content), [pa.string()])
        return
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    for ordering in ([pa.string()], [pa.decimal128(20, 5), pa.float64()], [pa.int8()]):
        try:
            result = decode_deletes(bytes(content), ordering)
        except (CorruptTableError, UnsupportedError):
            continue
        result.keys.validate(full=True)
        assert len(result.keys) == len(result.partitions) == len(result.default)


ROWS = st.sets(st.integers(0, 200) | st.integers(65_000, 66_000) | st.integers(0, 2**40), max_size=60)


@examples(150)
@given(ROWS, st.lists(st.tuples(st.integers(0, 2**18), st.integers(1, 70_000)), max_size=2))
def test_record_positions_round_trip(rows: set[int], ranges: list[tuple[int, int]]) -> None:
    positions = np.unique(np.concatenate([np.array(sorted(rows), np.int64), *(np.arange(s, s + n) for s, n in ranges)]))
    assert np.array_equal(decode_positions(encode_positions(positions[::-1])), positions)


@examples(150)
@given(ROWS, st.data())
def test_damaged_record_positions_are_decoded_or_corrupt(rows: set[int], data: st.DataObject) -> None:
    text = bytearray(encode_positions(np.array(sorted(rows), np.int64)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(list(b"AQgw/+09=")))
    try:
        result = decode_positions(text.decode())
    except CorruptTableError:
        return
    assert (np.diff(result) > 0).all() and (result[:1] >= 0).all()


NAMES = st.text("ab-0", min_size=1, max_size=6)


@st.composite
def plans(draw: st.DrawFn) -> CompactionPlan:
    operations = st.builds(
        CompactionOperation,
        partition=st.sampled_from(["", "day=1", "a/b"]),
        file_id=NAMES,
        base_instant=INSTANTS,
        data_file=st.none() | NAMES,
        log_files=st.lists(NAMES, max_size=3).map(tuple),
        metrics=st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=2),
    )
    return CompactionPlan(
        operations=tuple(draw(st.lists(operations, max_size=3))),
        extra=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
        missing_partitions=tuple(draw(st.lists(NAMES, max_size=2))),
    )


@examples(60)
@given(plans(), st.booleans())
def test_compaction_plans_round_trip(plan: CompactionPlan, log_compaction: bool) -> None:
    assert decode_compaction_plan(encode_compaction_plan(plan, log_compaction=log_compaction)) == plan


@examples(100)
@given(plans(), st.data())
def test_damaged_compaction_plans_are_decoded_or_corrupt(plan: CompactionPlan, data: st.DataObject) -> None:
    encoded = encode_compaction_plan(plan)
    with pytest.raises(CorruptTableError):
        decode_compaction_plan(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
