"""Tables in which Apache Hudi stored a key twice: reads return both rows, upserts change the row that Hudi changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, batch, row

pytestmark = pytest.mark.jvm

BASE = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.parquet.small.file.limit": "0",
}
INDEXED = BASE | {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "RECORD_INDEX",
}
BUCKET = BASE | {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.metadata.enable": "false",
}
INSERT = {"hoodie.datasource.write.operation": "insert"}


def rows(*ids: str, ts: int, v: str) -> pa.Table:
    return batch(row(id, ts=ts, v=v, **{DELETED: False}) for id in ids)


def values(table: Table, where: str | None = None) -> list[tuple[str, str]]:
    read = table.scan(["id", "v"], where).to_arrow().to_pylist()
    return sorted((r["id"], r["v"]) for r in read)


def uses_index(table: Table) -> bool:
    return "file group" in table.scan(where="id = 'k1'").explain().step("record_index").reason


def test_reads_by_key_of_a_table_with_a_repeated_key_return_all_rows(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    hudi.write(location, rows("k1", "k2", ts=1, v="first"), INDEXED, mode="overwrite")
    table = Table.open(location, options={"hoodie.index.type": "RECORD_INDEX"})
    assert not uses_index(table)
    table.metadata.rebuild()
    assert uses_index(table)
    table.upsert(rows("k1", "k3", ts=2, v="ours"))
    assert uses_index(table)
    hudi.write(location, rows("k2", "k4", ts=3, v="theirs"), INDEXED)
    # Nothing in a commit of Hudi shows by which index it looked its keys up.
    assert not uses_index(table)
    assert uses_index(Table.open(location, options={"lakehouse.index.trusts.keys": "true"}))
    table.metadata.rebuild()
    assert uses_index(table)
    hudi.write(location, rows("k1", ts=4, v="again"), INDEXED | INSERT)
    assert not uses_index(table)
    assert values(table, "id = 'k1'") == [("k1", "again"), ("k1", "ours")]
    assert values(table) == [("k1", "again"), ("k1", "ours"), ("k2", "theirs"), ("k3", "ours"), ("k4", "theirs")]
    # The reads of Hudi itself miss a row, because its index has the newest one.
    by_key = "SELECT id, v FROM {table} WHERE id = 'k1'"
    on = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}
    assert hudi.query(by_key, table=location, **on).column("v").to_pylist() == ["again"]
    with pytest.raises(UserError, match="record key 'k1' is in file group"):
        table.insert(rows("k1", ts=5, v="no"))
    with pytest.raises(UserError, match=r"record key 'k1' is in file group .* and in file group"):
        table.metadata.rebuild()


def test_upsert_of_a_repeated_key_in_a_bucket_changes_the_row_that_hudi_changes(hudi: Hudi, tmp_path: Path) -> None:
    location, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    hudi.write(
        location,
        pa.concat_tables([rows("k1", "k2", ts=1, v="first"), rows("k1", ts=2, v="second")]),
        BUCKET | INSERT | {"hoodie.datasource.write.operation": "bulk_insert"},
        mode="overwrite",
    )
    assert values(Table.open(location)) == [("k1", "first"), ("k1", "second"), ("k2", "first")]
    shutil.copytree(location, ours)
    hudi.write(location, rows("k1", ts=3, v="new"), BUCKET)
    options = {key: BUCKET[key] for key in ("hoodie.index.type", "hoodie.bucket.index.num.buckets")}
    table = Table.open(ours, options=options)
    table.upsert(rows("k1", ts=3, v="new"))
    expected = values(Table.open(location))
    assert [id for id, v in expected if v == "new"] == ["k1"]
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, Table.open(location))
    assert_hudi_reads_the_same(hudi, table)
    assert [finding.invariant for finding in table.validate(deep=True).findings] == ["key.unique"]
