"""Reads of tables that Apache Hudi wrote, pruned by their metadata table, return the rows of a read without pruning."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.planning.predicate import to_arrow
from lakehouse.core.table.table import Table
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, StartsWith
from tests.golden.test_metadata_tables import TABLES
from tests.support.shared import fixtures


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table whose metadata table Hudi wrote."""
    with zipfile.ZipFile(fixtures(f"hudi_metadata/tables/{request.param}.zip")) as archive:
        archive.extractall(tmp_path)
    (root,) = [
        path.parent
        for path in tmp_path.rglob(".hoodie")
        if (path / "hoodie.properties").exists() and path.parent.name != "metadata"
    ]
    return Table.open(str(root))


def conditions(rows: pa.Table) -> list[Predicate]:
    """Return conditions on each column with values that occur, and with values beside them."""
    found: list[Predicate] = []
    for field in rows.schema:
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type):
            continue
        values = [value for value in dict.fromkeys(rows.column(field.name).to_pylist()) if value is not None]
        found += [IsNull(field.name), Not(IsNull(field.name))]
        for value in values[:2] + values[-1:]:
            found += [Comparison(field.name, operator, value) for operator in ("=", "!=", "<", "<=", ">", ">=")]
            found += [In(field.name, (value, values[0])), Not(Comparison(field.name, "=", value))]
            if isinstance(value, str) and value:
                found += [StartsWith(field.name, value[:1]), StartsWith(field.name, value), StartsWith(field.name, "~")]
    pairs = list(zip(found[::7], found[3::5], strict=False))
    return [*found, *map(And, pairs), *map(Or, pairs)]


def planned(table: Table, where: Predicate, *, trusts_keys: bool = False) -> Scan:
    scan = plan_read(table.refresh(), ScanRequest(where=where, trusts_keys=trusts_keys))
    assert isinstance(scan, Scan)
    return scan


def rows_of(scan: Scan) -> pa.Table:
    return pa.Table.from_batches(scan.batches(), scan.schema)


def counted(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def test_pruned_read_equals_the_filtered_read_for_each_condition(table: Table) -> None:
    whole = table.scan().to_arrow()
    assert whole.num_rows
    slices = len(table.scan().plan().plan.slices)
    pruned = 0
    for number, where in enumerate(conditions(whole)):
        scan = planned(table, where)
        is_pruned = len(scan.plan.slices) < slices
        # A plan that opens all slices cannot lose rows by pruning. One in four of these is read, which saves time.
        if is_pruned or number % 4 == 0:
            expected = whole.filter(to_arrow(where, whole.schema))
            assert counted(rows_of(scan)) == counted(expected), where
        pruned += is_pruned
    assert pruned
    assert table.scan().explain().step("files").reason.startswith("the metadata table")


def test_point_read_by_record_key_opens_one_file_group(table: Table) -> None:
    usable = table.config.raw["hoodie.table.metadata.partitions"].split(",")
    if "record_index" not in usable:
        pytest.skip("the table has no record index")
    keys: list[Any] = table.scan(["_hoodie_record_key"]).to_arrow().column(0).to_pylist()
    for key in dict.fromkeys(keys[:3] + keys[-3:]):
        where = Comparison("_hoodie_record_key", "=", key)
        # Nothing shows by which index Hudi looked its keys up.
        unproven = planned(table, where)
        assert "is not used" in unproven.explain().step("record_index").reason
        assert rows_of(unproven).num_rows == keys.count(key)
        scan = planned(table, where, trusts_keys=True)
        slices = scan.plan.slices
        # A partitioned record index may have a key in several partitions.
        assert 1 <= len(slices) <= keys.count(key)
        assert scan.explain().step("record_index").partitions == len(set(slices.partitions.to_pylist()))
        assert rows_of(scan).num_rows == keys.count(key)
    missing = planned(table, Comparison("_hoodie_record_key", "=", "no such key"), trusts_keys=True)
    assert missing.plan.slices == ()
