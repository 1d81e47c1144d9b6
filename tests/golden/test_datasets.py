"""Datasets of tables that Apache Hudi wrote have the rows of a scan."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from lakehouse import Table
from lakehouse.core.format.avro.schema import META_COLUMNS
from tests.support.fixture_tables import FixtureTable, load_fixture_tables

TABLES = [table for table in load_fixture_tables() if table.is_supported]


@pytest.mark.parametrize("fixture", TABLES, ids=lambda fixture: fixture.name)
def test_dataset_has_the_rows_of_a_scan(fixture: FixtureTable, tmp_path: Path) -> None:
    table = Table.open(str(fixture.unpack(tmp_path)))
    rows = table.scan().to_arrow()
    dataset = table.scan().to_pyarrow_dataset()
    assert dataset.to_table() == rows
    assert dataset.to_table([META_COLUMNS[0]]) == rows.select([META_COLUMNS[0]])
    assert dataset.count_rows() == rows.num_rows
    is_last = pc.field(rows.schema.names[-1]).is_valid()
    assert dataset.count_rows(is_last) == rows.filter(is_last).num_rows
