"""Tables of Apache Hudi with consistent hashing: rows, rings, look-ups, a pending resize, and our writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement.resizes import pending_plans
from lakehouse.core.operations.placement.rings import load_rings
from lakehouse.core.table.table import Table
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING, INDEX_TYPE
from lakehouse.spec.table.bucket_rules import NUM_BUCKETS
from tests.support.shared import fixtures

COLUMNS = ["id", "ts", "part", "price", "name"]
PARTITIONS = ["part=a", "part=b"]
OPTIONS = {INDEX_TYPE: "BUCKET", BUCKET_ENGINE: CONSISTENT_HASHING, NUM_BUCKETS: "2"}
TABLES = ["mor_consistent_hashing", "mor_consistent_dual_write"]


def opened(name: str, directory: Path) -> Table:
    """Unpack a fixture table and open it."""
    with zipfile.ZipFile(fixtures(f"hudi_metadata/tables/{name}.zip")) as packed:
        packed.extractall(directory)
    (root,) = (path.parent for path in directory.rglob(".hoodie") if path.parent.name != "metadata")
    return Table.open(str(root), options=OPTIONS)


def expected(name: str) -> dict[str, dict[str, Any]]:
    """Return the rows that hudi-rs read, by id."""
    found = json.loads(fixtures(f"hudi_metadata/tables/{name}.rows.json").read_text())
    return {row["id"]: {column: row[column] for column in COLUMNS} for row in found}


def rows(table: Table) -> dict[str, dict[str, Any]]:
    """Return the rows by id; assert that each id occurs once."""
    found = table.scan(COLUMNS).to_arrow().to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row for row in found}


def assert_rows_in_their_ranges(table: Table) -> None:
    """Assert that each row is in the file group of its hash."""
    rings = load_rings(table.refresh(), PARTITIONS)
    found = table.scan(["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]).to_arrow()
    hashes = key_hashes(found.column("_hoodie_record_key"), key_fields=("id",), hash_fields=())
    for row, value in zip(found.to_pylist(), hashes.tolist(), strict=True):
        ring: Ring = rings[row["_hoodie_partition_path"]]
        assert row["_hoodie_file_name"].lstrip(".").startswith(ring.node_of(value).file_id)


def change(table: Table) -> dict[str, dict[str, Any]]:
    """Upsert every second stored row and ten new ones; return the rows that are expected then."""
    before = rows(table)
    changed = [row | {"ts": 99, "name": "ours"} for row in list(before.values())[::2]]
    changed += [changed[0] | {"id": f"new-{n}", "part": "ab"[n % 2]} for n in range(10)]
    schema = pa.schema([field for field in table.scan(COLUMNS).to_arrow().schema])
    outcome = table.upsert(pa.Table.from_pylist(changed, schema=schema))
    assert isinstance(outcome, Committed)
    return before | {row["id"]: row for row in changed}


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_hudi_are_read_and_are_in_the_groups_of_their_hashes(name: str, tmp_path: Path) -> None:
    table = opened(name, tmp_path)
    assert rows(table) == expected(name)
    assert_rows_in_their_ranges(table)
    rings = load_rings(table.refresh(), PARTITIONS)
    for piece in load_slices(table.refresh()):
        assert rings[piece.partition].node_of_group(piece.file_id) is not None


def test_upsert_into_a_table_of_hudi_updates_the_stored_rows(tmp_path: Path) -> None:
    table = opened("mor_consistent_hashing", tmp_path)
    groups = {piece.file_id for piece in load_slices(table.refresh())}
    after = change(table)
    assert rows(table) == after
    assert_rows_in_their_ranges(table)
    assert {piece.file_id for piece in load_slices(table.refresh())} == groups


def test_resize_that_hudi_planned_is_observed_by_writes_and_executed(tmp_path: Path) -> None:
    table = opened("mor_consistent_dual_write", tmp_path)
    ((instant, plan),) = pending_plans(table.refresh())
    assert len(plan.slices) == 4
    after = change(table)
    assert rows(table) == after, "readers ignore the copies"
    done = table.services.clustering.run(instant=instant.requested)
    assert isinstance(done, Committed)
    assert rows(table) == after, "the copies of Hudi and of this package are read"
    rings = load_rings(table.refresh(), PARTITIONS)
    assert [len(rings[partition].metadata.nodes) for partition in PARTITIONS] == [4, 4]
    assert_rows_in_their_ranges(table)
    table.services.compaction.run(force=True)
    assert rows(table) == after
