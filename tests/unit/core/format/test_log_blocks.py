"""Test log blocks and their order, record positions, compaction plans and the names of change logs."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.format.avro.object_file import write_record
from lakehouse.core.format.file_names import parse_cdc_file, parse_log_file
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock, block_frame, encode_block, scan_blocks
from lakehouse.core.format.log.record_positions import decode_positions, encode_positions
from lakehouse.core.format.log.scan import settle_blocks
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.format.timeline.schemas import COMPACTION_PLAN
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.compaction import CompactionOperation, CompactionPlan

T1, T2, T3, T4 = (f"2025010{day}000000000" for day in range(1, 5))
#: The bytes of the rollback command in DATA-4.3.
ROLLBACK = bytes.fromhex(
    "23485544492300000000000000" + "5b" + "0000000100000000" + "00000003"
    "0000000000000011" + b"20250126040936578".hex() + "000000030000000130"
    "0000000100000011" + b"20250126040826878".hex() + "0000000000000000" + "00000000" + "0000000000000061"
)


def block(instant: str = T1, content: bytes = b"abc", kind: BlockType = BlockType.PARQUET_DATA) -> bytes:
    return encode_block(kind, {BlockHeader.INSTANT_TIME: instant, BlockHeader.SCHEMA: "{}"}, content)


def kinds(data: bytes) -> list[str]:
    return [scanned.kind.name for scanned in scan_blocks(io.BytesIO(data))]


def test_a_rollback_command_is_encoded_like_hudi() -> None:
    headers = {
        BlockHeader.INSTANT_TIME: "20250126040936578",
        BlockHeader.COMMAND_BLOCK_TYPE: "0",
        BlockHeader.TARGET_INSTANT_TIME: "20250126040826878",
    }
    assert len(ROLLBACK) == 105
    assert encode_block(BlockType.COMMAND, headers, b"") == ROLLBACK
    (scanned,) = scan_blocks(io.BytesIO(ROLLBACK))
    assert (scanned.kind, scanned.headers, scanned.length) == (BlockType.COMMAND, headers, 0)
    assert (scanned.instant, scanned.target, scanned.schema) == ("20250126040936578", "20250126040826878", None)


def test_scan_returns_the_blocks_of_a_file_with_their_content_offsets() -> None:
    data = block(T1, b"abc") + block(T2, b"", BlockType.DELETE) + block(T3, b"x" * 20_000)
    scanned = scan_blocks(io.BytesIO(data))
    assert [(b.kind, b.instant) for b in scanned] == [
        (BlockType.PARQUET_DATA, T1),
        (BlockType.DELETE, T2),
        (BlockType.PARQUET_DATA, T3),
    ]
    assert [data[b.offset : b.offset + b.length] for b in scanned] == [b"abc", b"", b"x" * 20_000]


def test_scan_accepts_arrow_files() -> None:
    assert [scanned.instant for scanned in scan_blocks(pa.BufferReader(block(T1) + block(T2)))] == [T1, T2]


def test_block_frame_returns_the_bytes_around_the_content() -> None:
    before, after = block_frame(BlockType.DELETE, {BlockHeader.INSTANT_TIME: T1}, 5)
    assert before + b"12345" + after == encode_block(BlockType.DELETE, {BlockHeader.INSTANT_TIME: T1}, b"12345")


def test_scan_does_not_read_contents() -> None:
    class Counting(io.BytesIO):
        bytes_read = 0

        def read(self, nbytes: int | None = -1, /) -> bytes:
            data = super().read(nbytes)
            self.bytes_read += len(data)
            return data

    source = Counting(block(T1, b"x" * 5_000_000) + block(T2, b"y" * 5_000_000))
    assert len(scan_blocks(source)) == 2
    assert source.bytes_read < 100_000


def test_block_properties_are_parsed_from_headers() -> None:
    headers = {
        BlockHeader.INSTANT_TIME: T3,
        BlockHeader.SCHEMA: '{"type": "record"}',
        BlockHeader.IS_PARTIAL: "TRUE",
        BlockHeader.COMPACTED_BLOCK_TIMES: f"{T2},{T1}",
    }
    (scanned,) = scan_blocks(io.BytesIO(encode_block(BlockType.AVRO_DATA, headers, b"")))
    assert (scanned.schema, scanned.is_partial, scanned.compacted) == ('{"type": "record"}', True, (T2, T1))
    plain = LogBlock(kind=BlockType.CORRUPT, offset=0, length=0)
    assert (plain.instant, plain.schema, plain.is_partial, plain.compacted, plain.target) == ("", None, False, (), None)


def test_a_file_shorter_than_a_magic_has_no_blocks() -> None:
    assert scan_blocks(io.BytesIO(b"")) == [] and scan_blocks(io.BytesIO(b"#HUDI")) == []


def test_a_file_that_does_not_start_with_a_block_is_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="starts with b'PAR1"):
        scan_blocks(io.BytesIO(b"PAR1PAR1PAR1"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"#HUDI#", ["CORRUPT"]),
        (block()[:-1], ["CORRUPT"]),
        (block() + b"tail", ["PARQUET_DATA"]),
        (block() + b"a longer tail", ["CORRUPT"]),
        (block() + block()[:20], ["PARQUET_DATA", "CORRUPT"]),
        (block()[:40] + block(), ["CORRUPT", "PARQUET_DATA"]),
        (block()[:-8] + b"\0" * 8 + block(), ["CORRUPT", "PARQUET_DATA"]),
        (b"#HUDI#" + b"\xff" * 8 + block(), ["CORRUPT", "PARQUET_DATA"]),
    ],
)
def test_incomplete_blocks_are_skipped(data: bytes, expected: list[str]) -> None:
    assert kinds(data) == expected


def test_the_next_block_is_found_on_the_border_of_two_reads() -> None:
    for size in (1 << 20) - 14 + np.arange(-8, 8):
        broken = b"#HUDI#" + b"\xff" * 8 + b"#" * int(size)
        assert kinds(broken + block()) == ["CORRUPT", "PARQUET_DATA"]


@pytest.mark.parametrize(
    ("kind", "headers", "problem"),
    [
        (BlockType.DELETE, {}, "DELETE but lacks the headers INSTANT_TIME"),
        (BlockType.AVRO_DATA, {BlockHeader.INSTANT_TIME: T1}, "AVRO_DATA but lacks the headers SCHEMA"),
        (
            BlockType.COMMAND,
            {BlockHeader.INSTANT_TIME: T1},
            "lacks the headers COMMAND_BLOCK_TYPE, TARGET_INSTANT_TIME",
        ),
        (BlockType.PARQUET_DATA, {BlockHeader.INSTANT_TIME: T1, BlockHeader.IS_PARTIAL: "true"}, "lacks .* SCHEMA"),
        (BlockType.CORRUPT, {BlockHeader.INSTANT_TIME: T1}, "unknown kind 2"),
        (9, {BlockHeader.INSTANT_TIME: T1}, "unknown kind 9"),
        (BlockType.DELETE, {11: T1}, "unknown header 11"),
    ],
)
def test_a_complete_block_with_invalid_headers_is_corrupt(
    kind: BlockType, headers: Mapping[BlockHeader, str], problem: str
) -> None:
    with pytest.raises(CorruptTableError, match=problem):
        scan_blocks(io.BytesIO(encode_block(kind, headers, b"")))


@pytest.mark.parametrize(
    ("at", "replacement", "problem"),
    [
        (14, b"\0\0\0\2", "log format version 2"),
        (22, b"\0\0\1\0", "256 headers"),
        (30, b"\xff\xff\xff\xff", "declares a header INSTANT_TIME of -1 bytes"),
        (34, b"\xff\xff", "not UTF-8"),
    ],
)
def test_invalid_header_bytes_are_corrupt(at: int, replacement: bytes, problem: str) -> None:
    data = block()
    with pytest.raises(CorruptTableError, match=problem):
        scan_blocks(io.BytesIO(data[:at] + replacement + data[at + len(replacement) :]))


def placed(*blocks: tuple[str, str]) -> list[tuple[int, LogBlock]]:
    """Return blocks for pairs (instant, "data" | "undo <instant>" | "compact <instants>" | "corrupt")."""
    result = []
    for number, (instant, content) in enumerate(blocks):
        verb, _, rest = content.partition(" ")
        headers = {BlockHeader.INSTANT_TIME: instant}
        kind = BlockType.PARQUET_DATA
        if verb == "undo":
            kind = BlockType.COMMAND
            headers |= {BlockHeader.TARGET_INSTANT_TIME: rest, BlockHeader.COMMAND_BLOCK_TYPE: "0"}
        elif verb == "compact":
            headers[BlockHeader.COMPACTED_BLOCK_TIMES] = rest
        elif verb == "corrupt":
            kind, headers = BlockType.CORRUPT, {}
        result.append((number, LogBlock(kind=kind, headers=headers, offset=0, length=0)))
    return result


def settled(*blocks: tuple[str, str], hidden: str = "") -> list[int]:
    return [number for number, _ in settle_blocks(placed(*blocks), lambda instant: instant != hidden)]


def test_a_rollback_removes_only_earlier_blocks_of_its_target() -> None:
    assert settled((T1, "data"), (T2, "data"), (T2, "data"), (T3, f"undo {T2}"), (T2, "data")) == [0, 4]
    assert settled((T1, "data"), (T3, f"undo {T2}")) == [0]


def test_corrupt_blocks_and_blocks_of_invisible_commits_are_dropped() -> None:
    assert settled((T1, "data"), ("", "corrupt"), (T2, "data"), (T3, "data"), hidden=T2) == [0, 3]


def test_a_log_compaction_takes_the_position_of_the_last_block_it_replaces() -> None:
    assert settled((T1, "data"), (T2, "data"), (T3, "data"), (T4, f"compact {T1},{T2}")) == [3, 2]
    assert settled((T1, "data"), (T2, "data"), (T4, f"compact {T1},{T2}"), (T3, "data")) == [2, 3]


def test_a_log_compaction_of_log_compactions_replaces_all_their_blocks() -> None:
    first, second = (T3, f"compact {T1},{T2}"), ("5", f"compact {T3},{T4}")
    assert settled((T1, "data"), (T2, "data"), first, (T4, "data"), second) == [4]
    assert settled((T1, "data"), (T2, "data"), first, (T4, "data"), second, hidden="5") == [2, 3]


def test_an_invisible_or_rolled_back_log_compaction_replaces_no_blocks() -> None:
    blocks = ((T1, "data"), (T2, "data"), (T3, f"compact {T1},{T2}"))
    assert settled(*blocks, hidden=T3) == [0, 1]
    assert settled(*blocks, (T4, f"undo {T3}")) == [0, 1]


def test_other_commands_and_change_logs_are_refused() -> None:
    ((_, command),) = placed((T1, f"undo {T2}"))
    strange = LogBlock(
        kind=BlockType.COMMAND, headers={**command.headers, BlockHeader.COMMAND_BLOCK_TYPE: "1"}, offset=0, length=0
    )
    with pytest.raises(UnsupportedError, match="type '1'"):
        settle_blocks([(0, strange)], lambda instant: True)
    change = LogBlock(kind=BlockType.CDC_DATA, headers={BlockHeader.INSTANT_TIME: T1}, offset=0, length=0)
    with pytest.raises(CorruptTableError, match="CDC_DATA"):
        settle_blocks([(0, change)], lambda instant: True)


def test_record_positions_equal_those_of_java() -> None:
    assert encode_positions(np.array([0])) == "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAAAEAAAAAAA"
    assert decode_positions("AQAAAAAAAAAAAAAAOzAAAAEAAA8ABgADAAAABgABAAoAAgAOAAEAEwAAABcABgA=").tolist() == [
        *(3, 6, 7, 10, 11, 12, 14, 15, 19),
        *range(23, 30),
    ]


def test_record_positions_of_each_container_kind_round_trip() -> None:
    kinds_of_containers = (np.arange(5), np.arange(0, 30_000, 3) + 65_536, np.arange(300_000, 400_000), [1 << 40])
    rows = np.concatenate([np.asarray(part, np.int64) for part in kinds_of_containers])
    assert decode_positions(encode_positions(rows)).tolist() == rows.tolist()
    assert decode_positions(encode_positions(np.zeros(0, np.int64))).tolist() == []


def test_invalid_record_positions_are_refused() -> None:
    for rows in ([1, 1], [-1, 2]):
        with pytest.raises(UserError, match="unique and not negative"):
            encode_positions(np.array(rows))
    for text in ("###", "AQAAAAAAAAA=", encode_positions(np.array([7]))[:-4], "AQAAAAAAAAAAAAAAPDAAAA=="):
        with pytest.raises(CorruptTableError, match="record positions"):
            decode_positions(text)


PLAN = CompactionPlan(
    operations=(
        CompactionOperation(
            partition="day=1",
            file_id="a-0",
            base_instant=T1,
            data_file=f"a-0_0-0-0_{T1}.parquet",
            log_files=(f".a-0_{T2}.log.1_0-1-2", f".a-0_{T3}.log.1_0-1-3"),
            metrics={"TOTAL_LOG_FILES": 2.0},
        ),
        CompactionOperation(
            partition="", file_id="b-0", base_instant=T2, data_file=None, log_files=(".b-0_2.log.1_0-1-2",)
        ),
    ),
    extra={"k": "v"},
    missing_partitions=("day=2",),
)


@pytest.mark.parametrize("log_compaction", [False, True])
def test_a_compaction_plan_round_trips(log_compaction: bool) -> None:
    assert decode_compaction_plan(encode_compaction_plan(PLAN, log_compaction=log_compaction)) == PLAN


def test_full_paths_of_a_version_1_plan_are_reduced_to_names() -> None:
    operation = {
        "baseInstantTime": T1,
        "deltaFilePaths": ["s3://lake/t/p/.a-0_1.log.1_0-0-0"],
        "dataFilePath": "s3://lake/t/p/a-0_0-0-0_1.parquet",
        "fileId": "a-0",
        "partitionPath": "p",
    }
    plan = decode_compaction_plan(write_record(COMPACTION_PLAN, {"operations": [operation], "version": 1}))
    (operation,) = plan.operations
    assert (operation.data_file, operation.log_files) == ("a-0_0-0-0_1.parquet", (".a-0_1.log.1_0-0-0",))
    assert (dict(operation.metrics), dict(plan.extra), plan.missing_partitions) == ({}, {}, ())


def test_a_compaction_operation_without_a_file_group_is_corrupt() -> None:
    record = {"operations": [{"baseInstantTime": T1, "fileId": None}]}
    with pytest.raises(CorruptTableError, match="names no file slice"):
        decode_compaction_plan(write_record(COMPACTION_PLAN, record))
    with pytest.raises(CorruptTableError, match="file is empty"):
        decode_compaction_plan(b"")


def test_a_change_log_is_recognized_by_its_suffix_and_is_not_a_data_log() -> None:
    name = f".a-0_{T1}.log.1_0-1-2.cdc"
    log = parse_cdc_file(name, "p", 7)
    assert log is not None and (log.name, log.path, log.suffix, log.size_bytes) == (
        name,
        f"p/{name}",
        ".cdc",
        7,
    )
    assert parse_log_file(name, "p", 7) is None
    assert parse_cdc_file(name.removesuffix(".cdc"), "p", 7) is None
    assert parse_cdc_file("a.parquet", "p", 7) is None
