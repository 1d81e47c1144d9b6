"""Apache Hudi and lakehouse write one table without a record key, and change the rows of each other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from tests.support.hudi import Hudi

pytestmark = pytest.mark.jvm

KEY = "_hoodie_record_key"
ROWS = pa.table({"a": [1, 2, 2], "p": ["x", "y", "y"]})
OPTIONS = {"hoodie.table.name": "events", "hoodie.datasource.write.operation": "insert"}


def numbers(rows: pa.Table) -> list[int]:
    return sorted(rows.column("a").to_pylist())


@pytest.mark.parametrize("partition", ["", "p"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("creator", ["lakehouse", "hudi"])
def test_both_append_to_and_change_one_table(
    creator: str, kind: str, partition: str, hudi: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "events")
    options = {**OPTIONS, "hoodie.datasource.write.table.type": kind}
    if partition:
        options["hoodie.datasource.write.partitionpath.field"] = partition
    if creator == "lakehouse":
        table = Table.create(location, name="events", partition_by=partition or (), table_type=kind)
        table.insert(ROWS)
        hudi.write(location, ROWS, options)
    else:
        hudi.write(location, ROWS, options, mode="overwrite")
        table = Table.open(location)
        table.insert(ROWS)
    both = hudi.read(location)
    assert numbers(both) == numbers(table.scan().to_arrow()) == [1, 1, 2, 2, 2, 2]
    assert len(set(both.column(KEY).to_pylist())) == 6
    assert sorted(both.column(KEY).to_pylist()) == sorted(table.scan().to_arrow().column(KEY).to_pylist())
    hudi.sql("UPDATE {table} SET a = 40 WHERE a = 2", table=location)
    table.delete_where("a = 1")
    assert numbers(hudi.read(location)) == numbers(table.scan().to_arrow()) == [40] * 4
    table.bulk_insert(ROWS)
    hudi.sql("DELETE FROM {table} WHERE a = 40", table=location)
    assert numbers(hudi.read(location)) == numbers(table.scan().to_arrow()) == [1, 2, 2]
    source = pa.table({"a": [2, 7], "p": ["y", "z"]})
    merge = table.merge(source, on="target.a = source.a").when_matched_update({"a": "20"})
    merge.when_not_matched_insert_all().execute()
    both = hudi.read(location)
    assert numbers(both) == numbers(table.scan().to_arrow()) == [1, 7, 20, 20]
    assert sorted(both.column(KEY).to_pylist()) == sorted(table.scan().to_arrow().column(KEY).to_pylist())
    assert not table.validate(deep=True).findings
