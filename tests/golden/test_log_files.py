"""Test that log files and compaction plans of Apache Hudi are decoded, and encoded to equal content."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.format.file_names import parse_instant, parse_log_file
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes, encode_deletes
from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.core.format.log.record_positions import decode_positions, encode_positions
from lakehouse.core.format.log.scan import settle_blocks
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.layout.registry import table_layout
from lakehouse.model.instant import Action
from tests.support.delete_list import Entry, read_entries
from tests.support.fixture_tables import load_fixture_tables
from tests.support.java_deletes import write_objects
from tests.support.shared import fixtures


def files_of(table: Any) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the files of a table and of its metadata table."""
    with zipfile.ZipFile(fixtures(f"hudi_tables/{table.entry['zip']}")) as archive:
        for path in archive.namelist():
            if "/._" not in path and not path.startswith("__MACOSX") and not path.endswith("/"):
                yield path, archive.read(path)


def logs_of(table: Any) -> Iterator[tuple[str, bytes, list[LogBlock]]]:
    """Yield (path, content, blocks) of the log files of a table and of its metadata table."""
    for path, data in files_of(table):
        if parse_log_file(path.rpartition("/")[2], "", len(data)) is not None:
            yield path, data, scan_blocks(io.BytesIO(data))


def content_of(data: bytes, block: LogBlock) -> bytes:
    return data[block.offset : block.offset + block.length]


def artefact(name: str) -> Path:
    return fixtures(f"hudi_artifacts/log_blocks/{name}")


@pytest.mark.parametrize("table", load_fixture_tables(), ids=lambda table: table.name)
def test_each_log_file_has_the_expected_blocks_and_round_trips(table: Any) -> None:
    counts: Counter[str] = Counter()
    for path, data, blocks in logs_of(table):
        again = (encode_block(block.kind, block.headers, content_of(data, block)) for block in blocks)
        assert b"".join(again) == data, path
        assert all(len(block.instant) >= 14 for block in blocks), path
        if "/.hoodie/" not in path:
            counts.update(block.kind.name.removesuffix("_DATA") for block in blocks)
    assert counts == table.entry.get("log_blocks", {})


def test_each_delete_block_decodes_like_fastavro_and_round_trips() -> None:
    blocks = entries = 0
    for table in load_fixture_tables():
        for path, data, log_blocks in logs_of(table):
            for block in log_blocks:
                if block.kind is not BlockType.DELETE:
                    continue
                content = content_of(data, block)
                expected = read_entries(content)
                deleted = decode_deletes(content, [pa.int64()])
                assert deleted.keys.to_pylist() == [key for key, _, _ in expected], path
                assert deleted.partitions.to_pylist() == [partition for _, partition, _ in expected], path
                values = [value for _, _, value in expected]
                is_long = [value is not None and value[0] == "Long" for value in values]
                assert (~deleted.default).tolist() == is_long, path
                longs = [value[1] if long else None for value, long in zip(values, is_long, strict=True)]
                assert deleted.ordering[0].to_pylist() == longs, path
                if expected and len(set(is_long)) == 1 and None not in values:
                    ordering = deleted.ordering[0] if is_long[0] else None
                    assert encode_deletes(deleted.keys, expected[0][1] or "", ordering) == content, path
                blocks, entries = blocks + 1, entries + len(expected)
    assert blocks > 200 and entries > 40


def test_record_positions_in_headers_round_trip() -> None:
    seen = 0
    for table in load_fixture_tables():
        for path, _, blocks in logs_of(table):
            for block in blocks:
                text = block.headers.get(BlockHeader.RECORD_POSITIONS)
                if text is not None:
                    assert BlockHeader.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS in block.headers
                    rows = decode_positions(text)
                    assert len(rows) and encode_positions(rows[::-1]) == text, path
                    seen += 1
    assert seen > 10


def test_the_record_positions_artefact_has_the_expected_rows() -> None:
    text, expected = (
        artefact(name).read_text().strip().splitlines()[-1].strip()
        for name in ("record_positions_header_v3.data", "expected_record_positions.data")
    )
    rows = np.array([int(number) for number in expected.split(",")])
    assert decode_positions(text).tolist() == sorted(rows.tolist())
    assert encode_positions(rows) == text


def test_delete_blocks_of_version_2_are_read_and_round_trip() -> None:
    content = artefact("delete-block-v2-content-10-records.data").read_bytes()
    read = decode_any_deletes(content, [pa.int64()])
    # The last letter of a text has its high bit set.
    stored = [
        m[0][:-1] + bytes((m[0][-1] & 0x7F,)) for m in re.finditer(rb"[0-9a-f]{8}-[0-9a-f-]{26}[\x80-\xff]", content)
    ]
    assert read.keys.to_pylist() == [key.decode() for key in stored] and len(stored) == 10
    assert read.partitions.to_pylist() == ["0000/00/00"] * 10
    assert read.default.all()
    entries: list[Entry] = [(key, "0000/00/00", ("Int", 0)) for key in read.keys.to_pylist()]
    assert write_objects(entries, 2) == content


def test_the_rollback_artefact_names_its_target() -> None:
    (path,) = artefact("valid_log_rollback").glob(".*.log.*")
    (block,) = scan_blocks(io.BytesIO(path.read_bytes()))
    assert (block.kind, block.instant, block.target) == (
        BlockType.COMMAND,
        "20250126040936578",
        "20250126040826878",
    )
    assert block.headers[BlockHeader.COMMAND_BLOCK_TYPE] == "0" and block.length == 0


def test_a_rolled_back_block_is_dropped() -> None:
    (table,) = (t for t in load_fixture_tables() if t.name == "mor_v6_nonpartitioned_rollback")
    logs = sorted(
        (parse_log_file(path.rpartition("/")[2], "", 0).version, log_blocks) for path, _, log_blocks in logs_of(table)
    )  # type: ignore[union-attr]
    blocks = [(number, block) for number, log_blocks in logs for block in log_blocks]
    assert [(number, block.kind.name) for number, block in blocks] == [
        (1, "PARQUET_DATA"),
        (2, "COMMAND"),
        (3, "PARQUET_DATA"),
    ]
    assert [number for number, _ in settle_blocks(blocks, lambda instant: True)] == [3]


def test_a_log_compaction_replaces_the_blocks_it_merged() -> None:
    (table,) = (t for t in load_fixture_tables() if t.name == "mor_v9_layout_log_compaction")
    entries = sorted(
        ((path, block) for path, _, blocks in logs_of(table) for block in blocks), key=lambda item: item[0]
    )
    blocks = [(number, block) for number, (path, block) in enumerate(entries) if "/.hoodie/" not in path]
    assert len(blocks) == 5 and len(blocks[-1][1].compacted) == 4
    assert settle_blocks(blocks, lambda instant: True) == [blocks[-1]]
    assert settle_blocks(blocks, lambda instant: instant != blocks[-1][1].instant) == blocks[:-1]


def test_compaction_plans_round_trip() -> None:
    plans: Counter[str] = Counter()
    for table in load_fixture_tables():
        for path, data in files_of(table):
            kind = path.rpartition("/")[2].partition(".")[2]
            if kind not in ("compaction.requested", "logcompaction.requested"):
                continue
            plan = decode_compaction_plan(data)
            again = encode_compaction_plan(plan, log_compaction=kind.startswith("log"))
            assert decode_compaction_plan(again) == plan
            assert embedded(again) == embedded(data), path
            assert plan.operations and all(op.log_files for op in plan.operations)
            plans[kind] += 1
    assert plans["compaction.requested"] > 5 and plans["logcompaction.requested"] == 1


def test_encoded_log_and_compaction_stats_differ_from_hudis_only_in_times() -> None:
    kinds: Counter[str] = Counter()
    for table in load_fixture_tables():
        for path, data in files_of(table):
            instant = parse_instant(path.rpartition("/")[2])
            is_write = instant is not None and instant.action in (Action.COMMIT, Action.DELTACOMMIT)
            if not is_write or not instant.is_completed or not data or "/metadata/" in path or table.version < 6:  # type: ignore[union-attr]
                continue
            theirs = stats_in(data)
            ours = stats_in(table_layout(table.version).encode_commit(decode_commit(data)))
            assert ours == theirs, path
            kinds[table.entry["table_type"], json.loads(json.dumps(operation_of(data)))] += 1
    assert kinds["MERGE_ON_READ", "COMPACT"] >= 4 and kinds["MERGE_ON_READ", "UPSERT"] > 10


def record_of(data: bytes) -> Any:
    return json.loads(data) if data[:1] == b"{" else next(iter(fastavro.reader(io.BytesIO(data))))


def operation_of(data: bytes) -> str:
    return str(record_of(data)["operationType"])


def stats_in(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """Return the write stats of a commit without nulls and without durations."""
    times = {"runtimeStats", "totalLogReadTimeMs", "recordsStats"}
    return {
        partition: [
            {key: value for key, value in stat.items() if key not in times and value is not None} for stat in stats
        ]
        for partition, stats in record_of(data)["partitionToWriteStats"].items()
    }


def embedded(data: bytes) -> tuple[Any, Any]:
    """Return the schema without docs and the record of a container file."""
    reader = fastavro.reader(io.BytesIO(data))
    return without_docs(json.loads(reader.metadata["avro.schema"])), list(reader)


def without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_docs(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_docs(value) for key, value in schema.items() if key != "doc"}
