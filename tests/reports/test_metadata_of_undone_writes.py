"""A rollback deletes the files of a write that was completed before the metadata table was built."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.support import hudi_rs
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

LISTING = {"hoodie.metadata.enable": "false"}


def upsert(table: Table, key: str) -> str:
    outcome = table.upsert(batch([row(key)]))
    assert isinstance(outcome, Committed)
    return outcome.instant.requested


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first write", "later write"])
def test_rollback_of_a_write_that_a_rebuilt_metadata_table_contains_removes_its_files(
    kind: str, is_first: bool, tmp_path: Path
) -> None:
    """apache/hudi#3843: the metadata table is built from files of a commit that is rolled back."""
    table = make_table(Shape(type=kind, keys="non_partition"), env=make_env(str(tmp_path / "t")))
    keys = [] if is_first else ["a"]
    for key in keys:
        upsert(table, key)
    undone = upsert(table, "b")
    table.metadata.rebuild()
    table.rollback(undone)
    assert table.metadata.validate().ok
    upsert(table, "c")
    assert [record["id"] for record in data_rows(table)] == [*keys, "c"]
    assert sorted(hudi_rs.read(table.location).column("id").to_pylist()) == [*keys, "c"]
    assert table.metadata.validate().ok


def test_rollback_of_a_write_before_the_first_metadata_table_removes_its_files() -> None:
    """apache/hudi#4519, apache/hudi#3843: files of writes that are not completed in a new metadata table."""
    table = make_table(Shape(options=LISTING))
    upsert(table, "a")
    undone = upsert(table, "b")
    table = Table.open(table.location, options={"hoodie.metadata.enable": "true"}, env=table.refresh().env)
    table.metadata.rebuild()
    table.rollback(undone)
    assert table.metadata.validate().ok
    assert [record["id"] for record in data_rows(table)] == ["a"]
