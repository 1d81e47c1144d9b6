"""New files of the metadata table have the record schema of the stored ones, which differs between releases of Hudi."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, scan_blocks
from lakehouse.core.format.metadata.schema import CURRENT, HUDI_1_0, RecordSchema, record_node
from lakehouse.core.table.table import Table
from tests.support.fixture_tables import load_fixture_tables
from tests.support.hudi_rs import read
from tests.support.metadata_check import check_metadata
from tests.support.shared import fixtures

OF_HUDI_1_0 = "mor_v8_trips_8i3u1d"
(FIXTURE,) = [table for table in load_fixture_tables() if table.name == OF_HUDI_1_0]


def of_hudi_1_0(directory: Path) -> Table:
    """Open a table of version 8 whose metadata table Hudi 1.0 wrote."""
    return Table.open(str(FIXTURE.unpack(directory)))


def of_hudi_1_2(directory: Path) -> Table:
    """Open a table of version 8 whose metadata table Hudi 1.2 wrote."""
    with zipfile.ZipFile(fixtures("hudi_metadata/tables/mor_v8.zip")) as archive:
        archive.extractall(directory)
    (properties,) = [path for path in directory.rglob("hoodie.properties") if path.parent.parent.name != "metadata"]
    return Table.open(str(properties.parents[1]))


def upsert_first_row(table: Table) -> None:
    rows = table.scan().to_arrow()
    data = rows.select([name for name in rows.column_names if not name.startswith("_hoodie_")])
    table.upsert(data.slice(0, 1))


def schemas_of(table: Table, instant: str) -> set[str]:
    """Return the schemas that the files of an instant of the metadata table store."""
    found = set[str]()
    for path in (Path(table.location) / ".hoodie/metadata").glob("*/*"):
        if instant not in path.name or path.name.startswith("._"):
            continue
        data = path.read_bytes()
        if path.suffix == ".hfile":
            found.add(read_hfile(memoryview(data)).schema or "")
            continue
        for block in scan_blocks(pa.BufferReader(data)):
            found.add(block.headers.get(BlockHeader.SCHEMA, ""))
            if block.kind is BlockType.HFILE_DATA:
                content = memoryview(data)[block.offset : block.offset + block.length]
                found.add(read_hfile(content).schema or "")
    return found - {""}


def newest_instant(table: Table) -> str:
    return max(instant.requested for instant in table.refresh().metadata.timeline_store.load())


@pytest.mark.parametrize(("opened", "expected"), [(of_hudi_1_0, HUDI_1_0), (of_hudi_1_2, CURRENT)])
def test_log_blocks_of_a_write_have_the_record_schema_of_the_base_file(
    opened: Callable[[Path], Table], expected: RecordSchema, tmp_path: Path
) -> None:
    """apache/hudi#14108, apache/hudi#13711: `valueType` and the bounds of arrays came with Hudi 1.1.

    hudi-rs fails if the schemas of a slice differ.
    """
    table = opened(tmp_path)
    rows = read(table.location).num_rows
    upsert_first_row(table)
    instant = newest_instant(table)
    assert {record_node(schema) for schema in schemas_of(table, instant)} == {record_node(expected.files)}
    assert read(table.location).num_rows == rows
    check_metadata(table)


@pytest.mark.parametrize(("opened", "expected"), [(of_hudi_1_0, HUDI_1_0), (of_hudi_1_2, CURRENT)])
def test_services_of_the_metadata_table_write_the_record_schema_of_the_table(
    opened: Callable[[Path], Table], expected: RecordSchema, tmp_path: Path
) -> None:
    """apache/hudi#19559: a compaction meets records of another release; its base files keep the schema of the table."""
    table = opened(tmp_path)
    rows = read(table.location).num_rows
    table = table.with_options({"hoodie.metadata.compact.max.delta.commits": "2"})
    for _ in range(4):
        # The same process writes logs above the base files of its own compactions.
        upsert_first_row(table)
        assert read(table.location).num_rows == rows
        assert {record_node(schema) for schema in schemas_of(table, newest_instant(table))} == {
            record_node(expected.files)
        }
    store = table.refresh().metadata
    compactions = [i.requested for i in store.timeline_store.load() if i.action == "commit" and i.requested > "2026"]
    assert compactions
    found = {schema for instant in compactions for schema in schemas_of(table, instant)}
    assert {record_node(schema) for schema in found} == {record_node(expected.files)}
    commits = store.timeline_store.commits(store.timeline_store.load().where(action=("commit",)))
    assert commits[-1][1].extra["schema"] == expected.commits
    check_metadata(table)


def test_new_metadata_table_of_version_8_has_the_record_schema_of_hudi_1_0(tmp_path: Path) -> None:
    """apache/hudi#14108: Hudi 1.0 must read what is written to a table of its version."""
    table = of_hudi_1_2(tmp_path)
    table.metadata.rebuild()
    upsert_first_row(table)
    first = {schema for schema in schemas_of(table, "0000000000000000")}
    assert {record_node(schema) for schema in first} == {record_node(HUDI_1_0.files)}
    assert read(table.location).num_rows == table.scan().to_arrow().num_rows
    check_metadata(table)
