"""Valid inputs for fuzz tests: bytes for each decoder, and tables with every kind of file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.encode import encode_avro_rows
from lakehouse.core.format.avro.nodes import avro_nodes
from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.format.hashing_config import HashingConfig, decode_hashing_config, encode_hashing_config
from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.hfile.writer import SCANNED, Layout, write_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes, encode_deletes
from lakehouse.core.format.log.record_positions import decode_positions, encode_positions
from lakehouse.core.format.parquet.bloom_filter import DYNAMIC, SIMPLE, BloomBuilder, BloomFilter
from lakehouse.core.format.parquet.thrift_compact import decode_struct
from lakehouse.core.format.partition_statistics import TableStatistics, decode_statistics, encode_statistics
from lakehouse.core.format.properties import parse_properties
from lakehouse.core.format.publication import decode_publications, encode_publications
from lakehouse.core.format.timeline.archive import decode_manifest, read_instants
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.format.timeline.commit_files import decode_files
from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_requested_replace
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.format.timeline.indexing import (
    decode_index_metadata,
    decode_index_plan,
    encode_index_metadata,
    encode_index_plan,
)
from lakehouse.core.format.timeline.restore import decode_restore_metadata, decode_restore_plan, decode_savepoint
from lakehouse.core.format.timeline.rollback import decode_rollback_metadata, decode_rollback_plan
from lakehouse.core.format.ttl_rules import decode_base, decode_edit
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.model.indexing import IndexedPartition, IndexMetadata, IndexPlan
from lakehouse.model.publication import Publication
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint
from tests.support.fuzz import files_of
from tests.support.tables import Shape, batch, make_table, row

Decoder = tuple[list[bytes], Callable[[bytes], object]]

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("t", pa.string()),
        ("d", pa.decimal128(20, 3)),
        ("l", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]))),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)
RULES = HashingConfig(expressions="a,1", default=2)
ROWS = [
    {"id": n, "t": f"text {n}", "d": None, "l": [{"x": n, "y": ["a", None]}] * (n % 3), "m": [("k", 1.5)]}
    for n in range(12)
]


def busy_table(kind: str, version: int = 9) -> Table:
    """Return a table with files of writes, a savepoint, a rollback, a compaction and a clean."""
    table = make_table(Shape(type=kind, rows_per_file=4, version=version))
    for n in range(4):
        table.upsert(batch([row(f"k{i}", p="ab"[i % 2], ts=n, v=f"v{n}") for i in range(n, n + 6)]))
    table.delete(["k4"])
    table.savepoint(table.commits()[-1][0].requested, comment="x")
    table.upsert(batch([row("k1", p="b", ts=9)]))
    table.rollback(table.commits()[-1][0].requested)
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        table.upsert(batch([row("k2", p="a", ts=10)]))
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    return table


def decoders() -> dict[str, Decoder]:
    """Return each decoder of the format with valid inputs."""
    found: dict[str, Decoder] = {
        "properties": ([b"# x\nhoodie.table.name=t\na\\:b = c\\u00e4 \\\n d\n"], parse_properties),
        "table schema": ([arrow_to_avro(NESTED, table="t").encode()], _text(avro_to_arrow)),
        "avro nodes": ([arrow_to_avro(NESTED, table="t").encode()], _text(avro_nodes)),
        "avro block": ([_avro_block()], lambda data: decode_avro_rows(data, arrow_to_avro(NESTED, table="t"))),
        "delete block": (_delete_blocks(), lambda data: decode_deletes(data, [pa.int64()])),
        "hfile": ([_hfile(SCANNED), _hfile(Layout(compression="none"))], lambda data: read_hfile(data).entries()),
        "log blocks": ([_log_file()], lambda data: scan_blocks(io.BytesIO(data))),
        "positions": ([_positions()], _text(decode_positions)),
        "simple bloom": ([_bloom(SIMPLE)], lambda data: _ask(data, SIMPLE)),
        "dynamic bloom": ([_bloom(DYNAMIC)], lambda data: _ask(data, DYNAMIC)),
        "thrift": ([_footer()], decode_struct),
        "statistics": ([encode_statistics(TableStatistics(instants={"1": "2"}), "id")], decode_statistics),
        "history": ([_parquet()], lambda data: read_instants(pa.BufferReader(data))),
        "history manifest": ([b'{"files": [{"fileName": "1_2_0.parquet", "fileLen": 12}]}'], decode_manifest),
        "bucket rules": ([encode_hashing_config(RULES)], _at(decode_hashing_config)),
        "ttl edit": ([b'{"id": "1", "at_ms": 1, "set": {"id": "x", "pattern": "re:a+"}}'], _at(decode_edit)),
        "ttl base": ([b'{"id": "1", "up_to": 1, "rules": [{"id": "x", "pattern": "a"}]}'], _at(decode_base)),
        "publications": ([encode_publications({"a.b": Publication(signals={"p": 1})}, "id")], _at(decode_publications)),
        "checkpoint": ([Checkpoint().to_json().encode()], _text(Checkpoint.from_json)),
        "version 6 commit": (
            [b'{"partitionToWriteStats": {"p": [{"path": "p/f", "numWrites": 1}]}, "extraMetadata": {"schema": "{}"}}'],
            decode_commit,
        ),
    }
    info = IndexedPartition(partition="record_index", up_to="20260101000000000", extra={"key": "value"})
    found["index plan"] = ([encode_index_plan(IndexPlan(partitions=(info,)))], decode_index_plan)
    found["index metadata"] = (
        [encode_index_metadata(IndexMetadata(partitions=(info,), operation="INDEX"))],
        decode_index_metadata,
    )
    files = files_of(busy_table("MERGE_ON_READ").refresh().env.storage)
    for suffix, decode in _PLANS.items():
        seeds = [data for path, data in files.items() if path.endswith(suffix) and data]
        assert seeds, f"no file of the table ends with {suffix}"
        found[suffix] = (seeds, decode)
    return found


def _hfile(layout: Layout) -> bytes:
    entries = pa.table({"key": [b"k%03d" % n for n in range(90)], "value": [bytes(n) for n in range(90)]})
    return write_hfile(entries, schema='"bytes"', created_ms=1, layout=layout)


def _relative(decode: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda data: decode(data, base_path="/lake/t")


_PLANS: dict[str, Callable[[bytes], object]] = {
    ".deltacommit": decode_files,
    ".commit": decode_commit,
    ".deltacommit.inflight": decode_commit,
    ".compaction.requested": decode_compaction_plan,
    ".clean.requested": _relative(decode_clean_plan),
    ".clean": decode_clean_metadata,
    ".savepoint": decode_savepoint,
    ".rollback": _relative(decode_rollback_metadata),
    ".rollback.requested": _relative(decode_rollback_plan),
}
#: Decoders that must also reject or accept valid inputs of other decoders without a defect.
CROSSED: tuple[Callable[[bytes], object], ...] = (
    decode_requested_replace,
    decode_clustering_plan,
    decode_restore_plan,
    _relative(decode_restore_metadata),
    decode_index_plan,
    decode_index_metadata,
    *_PLANS.values(),
)


def _text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    def decoded(data: bytes) -> object:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            # In production these texts come from documents that are already decoded.
            raise LakehouseError(str(error)) from error
        return decode(text)

    return decoded


def _at(decode: Callable[[bytes, str], object]) -> Callable[[bytes], object]:
    return lambda data: decode(data, "here")


def _avro_block() -> bytes:
    return bytes(encode_avro_rows(pa.Table.from_pylist(ROWS, NESTED), arrow_to_avro(NESTED, table="t")))


def _delete_blocks() -> list[bytes]:
    keys = pa.array([f"key-{n}" for n in range(9)])
    return [bytes(encode_deletes(keys, "p=1")), bytes(encode_deletes(keys, "p=1", pa.array(range(9), pa.int64())))]


def _log_file() -> bytes:
    headers = {BlockHeader.INSTANT_TIME: "20260101000000000", BlockHeader.SCHEMA: arrow_to_avro(NESTED, table="t")}
    blocks = [
        encode_block(BlockType.AVRO_DATA, headers, _avro_block()),
        encode_block(BlockType.DELETE, headers, _delete_blocks()[0]),
    ]
    return b"".join(blocks * 2)


def _positions() -> bytes:
    rows = np.concatenate([np.arange(0, 9_000, 3), np.arange(70_000, 80_000), np.array([2**33, 2**33 + 5])])
    return encode_positions(rows).encode()


def _bloom(kind: str) -> bytes:
    builder = BloomBuilder(50, 0.01, 200)
    builder.add(pa.array([f"k{n}" for n in range(120)]))
    made = builder.finish()
    if kind == SIMPLE:
        made = replace(made, type_code=SIMPLE, rows=made.rows[:1], count=50)
    return b"".join(made.text_pieces())


def _ask(data: bytes, kind: str) -> object:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise LakehouseError(str(error)) from error
    return BloomFilter.from_text(text, kind).might_contain(pa.array(["k1", "x"]))


def _parquet() -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"instantTime": ["1"] * 20, "completionTime": ["2"] * 20, "action": ["commit"] * 20})
    pq.write_table(rows.replace_schema_metadata({b"x": json.dumps({"version": 1}).encode()}), sink)
    return sink.getvalue()


def _footer() -> bytes:
    data = _parquet()
    length = int.from_bytes(data[-8:-4], "little")
    return data[-8 - length : -8]
