"""Test the columnar Avro codec on each Avro block in the fixtures of Apache Hudi."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.encode import encode_avro_rows
from lakehouse.core.format.file_names import parse_cdc_file, parse_log_file
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from tests.support.fixture_tables import load_fixture_tables
from tests.support.shared import fixtures


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """One block: its table and file, its SCHEMA header and its content."""

    place: str
    schema: str = field(repr=False)
    content: bytes = field(repr=False)

    def records(self) -> list[dict[str, Any]]:
        """Return the records that fastavro reads, with maps as lists of pairs."""
        schema: Any = fastavro.parse_schema(json.loads(self.schema))
        (count,) = struct.unpack_from(">i", self.content, 4)
        records, at = [], 8
        for _ in range(count):
            (length,) = struct.unpack_from(">i", self.content, at)
            datum = io.BytesIO(self.content[at + 4 : at + 4 + length])
            records.append(plain(fastavro.schemaless_reader(datum, schema, None)))
            assert datum.tell() == length
            at += 4 + length
        assert at == len(self.content)
        return records


def plain(value: Any) -> Any:
    """Return a value of fastavro in Arrow's representation."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table with maps as dicts."""
    return table.to_pylist(maps_as_pydicts="strict")


def blocks_of(place: str, data: bytes) -> Iterator[AvroBlock]:
    """Yield the Avro blocks of a log file."""
    for log_block in scan_blocks(io.BytesIO(data)):
        if log_block.kind in (BlockType.AVRO_DATA, BlockType.CDC_DATA):
            assert log_block.schema is not None, place
            yield AvroBlock(
                f"{place}@{log_block.offset}",
                log_block.schema,
                data[log_block.offset : log_block.offset + log_block.length],
            )


def load_blocks() -> list[AvroBlock]:
    """Return the Avro blocks of all fixture tables and of the log files among the artefacts."""
    blocks: list[AvroBlock] = []
    for path in sorted(fixtures("hudi_artifacts/log_blocks/valid_log_avro_data").iterdir()):
        blocks += blocks_of(path.name, path.read_bytes())
    for table in load_fixture_tables():
        with zipfile.ZipFile(fixtures(f"hudi_tables/{table.entry['zip']}")) as archive:
            for member in sorted(archive.namelist()):
                name = member.rpartition("/")[2]
                if parse_log_file(name, "", 0) or parse_cdc_file(name, "", 0):
                    blocks += blocks_of(f"{table.name}/{name}", archive.read(member))
    return blocks


BLOCKS = load_blocks()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_decodes_to_the_values_of_fastavro(block: AvroBlock) -> None:
    table = decode_avro_rows(block.content, block.schema)
    table.validate(full=True)
    assert rows(table) == block.records()
    pq.write_table(table, io.BytesIO())


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_encoded_to_equal_bytes(block: AvroBlock) -> None:
    encoded = encode_avro_rows(decode_avro_rows(block.content, block.schema), block.schema)
    assert encoded[:4] == struct.pack(">i", 3)
    assert encoded[4:] == block.content[4:]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_each_column_decodes_alone_as_with_the_others(block: AvroBlock) -> None:
    table = decode_avro_rows(block.content, block.schema)
    for name in table.column_names:
        assert decode_avro_rows(block.content, block.schema, [name]).equals(table.select([name]))


def test_the_fixtures_have_blocks_of_two_versions_and_nested_types() -> None:
    versions = {struct.unpack_from(">i", block.content)[0] for block in BLOCKS}
    assert versions == {1, 3}
    kinds = {field.type.id for block in BLOCKS for field in decode_avro_rows(block.content, block.schema).schema}
    nested = {pa.lib.Type_STRUCT, pa.lib.Type_LIST, pa.lib.Type_MAP, pa.lib.Type_DECIMAL128, pa.lib.Type_BINARY}
    assert nested <= kinds
    assert len(BLOCKS) >= 46
