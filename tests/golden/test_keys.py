"""Test that record keys and partition paths computed from the columns equal those that Apache Hudi stored."""

from __future__ import annotations

import io
import zipfile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.properties import parse_properties
from lakehouse.core.rows.keys import bad_key_mask, partition_paths, record_keys
from lakehouse.core.rows.partition_path import parse_partition_path
from lakehouse.core.state.table_config import TableConfig, parse_table_config
from tests.support.shared import fixtures

KEY, PATH = "_hoodie_record_key", "_hoodie_partition_path"

# Copy-on-write parquet tables with meta columns. cow_0x_trips_partitioned declares no record key columns.
TABLES = (
    "cow_0x_trips_partitioned",
    "cow_v6_complexkeygen_hivestyle",
    "cow_v6_nonpartitioned",
    "cow_v6_simplekeygen_nonhivestyle",
    "cow_v6_simplekeygen_nonhivestyle_overwritetable",
    "cow_v8_nonpartitioned",
    "cow_v8_simplekeygen_nonhivestyle",
    "cow_v8_timebasedkeygen_nonhivestyle",
    "cow_v9_timebasedkeygen_epochmillis",
    "cow_v9_txns_complex_meta",
    "cow_v9_txns_simple_overwrite",
)


def load(name: str) -> tuple[TableConfig, list[pa.Table]]:
    """Return the config of a fixture table and the rows of each base file, also of earlier file slices."""
    with zipfile.ZipFile(fixtures(f"hudi_tables/{name}.zip")) as archive:
        names = [path for path in archive.namelist() if "__MACOSX" not in path and "/metadata/" not in path]
        properties = next(path for path in names if path.endswith("/.hoodie/hoodie.properties"))
        config = parse_table_config(parse_properties(archive.read(properties)), name)
        data = [path for path in names if path.endswith(".parquet") and "/.hoodie/" not in path]
        tables = [pq.ParquetFile(io.BytesIO(archive.read(path))).read() for path in data]
    return config, [_as_declared(table, config) for table in tables if table.num_rows]


def _as_declared(table: pa.Table, config: TableConfig) -> pa.Table:
    """Cast the partition column of the epoch-millis table to its declared type; Hudi stored a string in one file."""
    if config.keys.timestamp is None or config.keys.timestamp.type != "EPOCHMILLISECONDS":
        return table
    index = table.schema.get_field_index(config.keys.partition_fields[0])
    return table.set_column(index, table.schema.names[index], table.column(index).cast(pa.int64()))


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith("cow_0x")])
def test_record_keys_equal_those_that_hudi_stored(name: str) -> None:
    config, tables = load(name)
    assert tables
    for table in tables:
        assert record_keys(table, config.keys).to_pylist() == table.column(KEY).to_pylist()


@pytest.mark.parametrize("name", TABLES)
def test_partition_paths_equal_those_that_hudi_stored(name: str) -> None:
    config, tables = load(name)
    assert tables
    for table in tables:
        assert partition_paths(table, config.keys).to_pylist() == table.column(PATH).to_pylist()


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith("cow_0x")])
def test_no_record_of_hudi_is_a_bad_record(name: str) -> None:
    config, tables = load(name)
    assert not any(pc.any(bad_key_mask(table, config.keys)).as_py() for table in tables)


@pytest.mark.parametrize("name", TABLES)
def test_stored_partition_paths_are_parsed_into_one_value_per_field(name: str) -> None:
    config, tables = load(name)
    paths = {path for table in tables for path in table.column(PATH).to_pylist()}
    for path in paths:
        values = parse_partition_path(path, config.keys)
        assert len(values) == len(config.keys.partition_fields)
        if not config.keys.hive_style:
            assert "/".join(value or "" for value in values) == path
