"""Test that each decoder returns a value or raises a LakehouseError for damaged and hostile bytes.

Memory and time are bounded. `make reliability` runs many more damaged inputs, also with tables of Apache Hudi.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pytest

from lakehouse.core.format.avro import object_file as avro_file
from lakehouse.core.format.avro.nodes import avro_nodes
from lakehouse.core.format.avro.schema import MAX_DEPTH, avro_to_arrow
from lakehouse.core.format.log.blocks import MAGIC, BlockType, scan_blocks
from lakehouse.core.format.log.record_positions import decode_positions
from lakehouse.core.format.parquet.bloom_filter import SIMPLE, BloomFilter
from lakehouse.core.format.parquet.thrift_compact import decode_struct
from lakehouse.core.format.properties import parse_properties
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.schemas import COMMIT_METADATA
from lakehouse.core.planning.conflict import COLUMNS_KEY, write_summary
from lakehouse.core.planning.event_time import PAST_KEY, WATERMARKS_KEY, decode_past, decode_watermarks
from lakehouse.core.planning.key_ranges import decode_ranges
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError, UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.document import parse_json
from lakehouse.model.drift import DRIFT_KEY, decode_drift
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.fuzz import Defect, bounded, files_of, fuzz_decoder, fuzz_table
from tests.support.hostile import CROSSED, NESTED, busy_table, decoders

DAMAGED_BYTES, DAMAGED_TABLES = range(100), range(25)
DEEP = "[" * 100_000
DECODERS = decoders()
JSON_DECODERS = (
    "version 6 commit",
    "history manifest",
    "bucket rules",
    "ttl edit",
    "ttl base",
    "publications",
    "checkpoint",
    "table schema",
    "avro nodes",
)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_raise_lakehouse_errors_for_damaged_bytes(name: str) -> None:
    seeds, decode = DECODERS[name]
    for seed in seeds:
        decode(seed)
    assert fuzz_decoder(name, seeds, decode, DAMAGED_BYTES) == []


def test_fuzzer_reports_decoders_that_fail_in_another_way() -> None:
    def hungry(data: bytes) -> bytes:
        return bytes(1 << 40)

    def careless(data: bytes) -> int:
        return [*data][1_000_000]

    def deep(data: bytes) -> int:
        return deep(data) + 1

    for decode, problem in ((hungry, "MemoryError"), (careless, "IndexError"), (deep, "RecursionError")):
        defects = fuzz_decoder("planted", [b"seed"], decode, range(3))
        assert [(defect.seed, defect.problem.partition(":")[0]) for defect in defects] == [
            (n, problem) for n in range(3)
        ]


def test_decoders_raise_lakehouse_errors_for_bytes_of_other_formats() -> None:
    defects: list[Defect] = []
    for name, (seeds, _) in DECODERS.items():
        for decode in CROSSED:
            defects += fuzz_decoder(name, seeds, decode, range(1))
    assert defects == []


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_table_with_a_damaged_file_is_read_or_refused(kind: str, version: int) -> None:
    files = files_of(busy_table(kind, version).refresh().env.storage)
    assert fuzz_table(kind, files, DAMAGED_TABLES) == []


@pytest.mark.parametrize("name", JSON_DECODERS)
@pytest.mark.parametrize("bomb", [DEEP, '{"files": ' + DEEP, '{"version": 1e999}', '{"a": NaN}', "9" * 5_000])
def test_json_that_python_cannot_represent_is_refused(name: str, bomb: str) -> None:
    with bounded(), pytest.raises(LakehouseError):
        DECODERS[name][1](bomb.encode())


def test_json_numbers_that_are_not_finite_are_refused() -> None:
    assert parse_json('{"a": [1, 2.5, -1e3, null]}') == {"a": [1, 2.5, -1000.0, None]}
    for text in ("[1e999]", "[NaN]", "[-Infinity]", DEEP):
        with pytest.raises(ValueError, match=r"outside of the range|is not valid in JSON|nested too deep"):
            parse_json(text)


EXTRAS: dict[str, Callable[[CommitMetadata], object]] = {
    COLUMNS_KEY: write_summary,
    WATERMARKS_KEY: decode_watermarks,
    PAST_KEY: decode_past,
    DRIFT_KEY: lambda metadata: decode_drift(metadata.extra),
    "lakehouse.column_ranges": lambda metadata: decode_ranges(metadata.extra["lakehouse.column_ranges"], NESTED),
}


@pytest.mark.parametrize("key", EXTRAS)
@pytest.mark.parametrize("text", ["[", "3", '{"a": 1}', "[[]]", DEEP, '{"id": [1e999, 1, 1]}'])
def test_invalid_extra_metadata_of_a_commit_is_refused(key: str, text: str) -> None:
    metadata = CommitMetadata(operation="upsert", stats=(), extra={key: text})
    allowed = text == '{"a": 1}' and key in (COLUMNS_KEY,)
    try:
        EXTRAS[key](metadata)
    except CorruptTableError as error:
        assert "of a commit" in str(error) and len(str(error)) < 500
    else:
        assert allowed, f"{key} accepted {text[:20]}"


def container(schema: Any, datum: bytes, *, codec: bytes | None = None, count: int = 1) -> bytes:
    """Return an Avro container file with this schema and datum."""
    meta = {"avro.schema": json.dumps(schema).encode()} | ({"avro.codec": codec} if codec else {})
    out, sync = io.BytesIO(), b"s" * 16
    fastavro.schemaless_writer(out, avro_file._HEADER, {"magic": avro_file.MAGIC, "meta": meta, "sync": sync})
    fastavro.schemaless_writer(out, avro_file._BLOCK, {"count": count, "data": datum, "sync": sync})
    return out.getvalue()


def commit_schema(*fields: Any) -> dict[str, Any]:
    named = [{"name": f"x{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": COMMIT_METADATA["name"], "fields": named}


MANY = b"\x80\x80\x80\x80\x80\x80\x80\x80\x40"  # 2^61 as a varint, zigzag
EMPTY = {"type": "record", "name": "E0", "fields": [{"name": "n", "type": "null"}]}


def doubling(levels: int, first: Any) -> list[Any]:
    """Return fields with records, each of which has two fields of the previous record."""
    result = [first]
    for level in range(1, levels):
        fields = [{"name": name, "type": f"E{level - 1}"} for name in "ab"]
        result.append({"type": "record", "name": f"E{level}", "fields": fields})
    return result


RECURSIVE = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
SCHEMA_BOMBS: dict[str, tuple[Any, bytes, str]] = {
    "array of nulls": (commit_schema({"type": "array", "items": "null"}), MANY, "items of zero bytes"),
    "array of empty records": (commit_schema({"type": "array", "items": EMPTY}), MANY, "items of zero bytes"),
    "array of fixed of zero bytes": (
        commit_schema({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        MANY,
        "items of zero bytes",
    ),
    "exponential records": (commit_schema(*doubling(60, EMPTY)), b"", "more than 100000 fields"),
    "recursive record": (commit_schema(RECURSIVE), b"\x02" * 1_000_000, "the recursive record"),
    "deep schema": (
        json.loads('{"type":"array","items":' * 70 + '"int"' + "}" * 70),
        b"",
        "levels",
    ),
}


@pytest.mark.parametrize("name", SCHEMA_BOMBS)
def test_timeline_file_with_an_exponential_schema_is_refused(name: str) -> None:
    schema, datum, reason = SCHEMA_BOMBS[name]
    with bounded(), pytest.raises(CorruptTableError, match=reason):
        decode_commit(container(schema, datum))


def test_timeline_file_that_expands_above_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_file, "MAX_INFLATED", 1 << 20)
    packer = zlib.compressobj(9, wbits=-15)
    bomb = packer.compress(bytes(4 << 20)) + packer.flush()
    assert len(bomb) < 10_000
    with pytest.raises(CorruptTableError, match="expands to more than 1048576 bytes"):
        decode_commit(container(commit_schema("bytes"), bomb, codec=b"deflate"))
    with pytest.raises(CorruptTableError, match="codec b'snappy' is not supported"):
        decode_commit(container(commit_schema("bytes"), b"", codec=b"snappy"))


def test_compressed_timeline_file_is_read_like_a_plain_one() -> None:
    plain = {"operationType": "UPSERT"}
    schema = {**COMMIT_METADATA, "fields": [f for f in COMMIT_METADATA["fields"] if f["name"] == "operationType"]}
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), [plain], codec="deflate")
    assert decode_commit(out.getvalue()).operation == "UPSERT"


@pytest.mark.parametrize(
    "field",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": "x"},
        {"type": "fixed", "name": "f", "size": 2**40},
        {"type": "fixed", "name": "f", "size": -5},
        {"type": "enum", "name": "e", "symbols": 3},
        {"type": {}},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": 7}]},
        [],
        None,
    ],
)
def test_invalid_column_type_is_refused(field: Any) -> None:
    text = json.dumps({"type": "record", "name": "t", "fields": [{"name": "c", "type": field}]})
    with pytest.raises(LakehouseError):
        avro_nodes(text)


def test_table_schema_that_is_exponential_or_too_deep_is_refused() -> None:
    record: dict[str, Any] = {"type": "record", "name": "E0", "fields": [{"name": "n", "type": "int"}]}
    text = json.dumps(commit_schema(*doubling(40, record)))
    with bounded(), pytest.raises(UnsupportedError, match="more than 200000 fields"):
        avro_nodes(text)
    for levels in (MAX_DEPTH + 1, 400, 50_000):
        deep = '{"type":"array","items":' * levels + '"int"' + "}" * levels
        text = '{"type":"record","name":"t","fields":[{"name":"c","type":' + deep + "}]}"
        for decode in (avro_nodes, avro_to_arrow):
            with bounded(), pytest.raises(LakehouseError, match=r"more than 64 levels|is not JSON"):
                decode(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16" + b"\xff" * 1_000_000, "more than 64 bits"),
        (b"\x19" + b"\x19" * 100_000, "nested too deep"),
        (b"\x1c" * 100_000, "nested too deep"),
        (b"\x1b\x01\xbb" + b"\x01\xbb" * 50_000, "nested too deep"),
        (b"\x19\xf8" + b"\xff" * 9 + b"\x01", "values in"),
    ],
)
def test_thrift_with_unbounded_nesting_or_counts_is_refused(data: bytes, reason: str) -> None:
    with bounded(), pytest.raises(CorruptTableError, match=reason):
        decode_struct(data)


def test_record_positions_above_the_bound_are_refused_before_allocation() -> None:
    containers = 1 << 16
    heads = np.stack([np.arange(containers), np.full(containers, 0xFFFF)], axis=1).astype("<u2").tobytes()
    runs = struct.pack("<HHH", 1, 0, 0xFFFF) * containers
    flags = b"\xff" * (containers // 8)
    bitmap = struct.pack("<I", 12_347 | (containers - 1) << 16) + flags + heads + bytes(4 * containers) + runs
    text = base64.b64encode(struct.pack("<QI", 1, 0) + bitmap).decode()
    with bounded(), pytest.raises(CorruptTableError, match="4294967296 row numbers"):
        decode_positions(text)


def test_bloom_filter_with_too_many_hashes_is_refused() -> None:
    header = struct.pack(">iiBi", 1, 2**31 - 1, 1, 64)
    for data in (header + bytes(8), struct.pack(">iiBi", 1, 10, 1, 2**31 - 1) + bytes(8)):
        with bounded(), pytest.raises(CorruptTableError, match="bloom filter"):
            BloomFilter.from_text(base64.b64encode(data).decode(), SIMPLE)


def test_properties_with_many_continuation_lines_are_parsed_in_linear_time() -> None:
    lines = 200_000
    with bounded():
        assert parse_properties(b"a=" + b"xxxxxxxxx\\\n" * lines + b"y") == {"a": "x" * 9 * lines + "y"}


class Counted(io.BytesIO):
    """A file that counts the bytes that are read."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize("size", [2**62, 30, 20_000])
def test_log_file_of_incomplete_blocks_is_read_a_bounded_number_of_times(size: int) -> None:
    piece = struct.pack(">6sq", MAGIC, size) + bytes(10)
    source = Counted(piece * 20_000)
    blocks = scan_blocks(source)
    assert {block.kind for block in blocks} == {BlockType.CORRUPT} and len(blocks) == 20_000
    assert source.bytes_read < 8 * len(source.getvalue())


def test_checkpoint_is_not_expanded_above_its_declared_size() -> None:
    packed = base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()
    text = json.dumps({"version": 1, "floor": None, "files": 1, "taken": packed})
    with bounded(), pytest.raises(CorruptTableError, match="checkpoint in the last commit is unreadable"):
        Checkpoint.from_json(text)
    for files in (-1, 2**70, "x", 1e300):
        with bounded(), pytest.raises(CorruptTableError, match="checkpoint in the last commit is unreadable"):
            Checkpoint.from_json(json.dumps({"version": 1, "floor": None, "files": files, "taken": packed}))


NESTS = ("a: " + "[" * 200_000, "- " * 200_000, "a: " + "{b: " * 70, "\n".join(" " * n + "a:" for n in range(100)))


@pytest.mark.parametrize("text", NESTS, ids=["lists", "items", "mappings", "lines"])
def test_spec_nested_deeper_than_the_loader_allows_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^here:\d+: more than 64 levels of nesting"):
        parse_spec(text, source="here")
