"""Columns with letters of other scripts as key, ordering, partition and nested field, in both directions with Hudi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.format.avro.schema import META_COLUMNS
from tests.support.hudi import Hudi, HudiError

pytestmark = pytest.mark.jvm
OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "schlüssel",
    "hoodie.table.ordering.fields": "größe",
    "hoodie.datasource.write.partitionpath.field": "名",
    "hoodie.datasource.write.hive_style_partitioning": "true",
}


def rows(*values: tuple[str, int, str]) -> pa.Table:
    return pa.table(
        {
            "schlüssel": [key for key, _, _ in values],
            "größe": [size for _, size, _ in values],
            "名": [part for _, _, part in values],
            "ort": [{"straße": key * 2} for key, _, _ in values],
        }
    )


def plain(table: pa.Table) -> list[dict[str, Any]]:
    listed = [{k: row[k] for k in sorted(row) if k not in META_COLUMNS} for row in table.to_pylist()]
    return sorted(listed, key=repr)


def test_letters_of_other_scripts_are_names_of_columns_for_both(hudi: Hudi, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    table = Table.create(
        ours,
        name="t",
        record_key="schlüssel",
        ordering="größe",
        partition_by="名",
        table_type="MERGE_ON_READ",
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    table.upsert(rows(("a", 1, "x"), ("b", 5, "ü")))
    table.upsert(rows(("a", 2, "x"), ("b", 4, "ü")))
    hudi.write(theirs, rows(("a", 1, "x"), ("b", 5, "ü")), OPTIONS, mode="overwrite")
    hudi.write(theirs, rows(("a", 2, "x"), ("b", 4, "ü")), OPTIONS)
    expected = plain(rows(("a", 2, "x"), ("b", 5, "ü")))
    for location in (ours, theirs):
        assert plain(Table.open(location).scan().to_arrow()) == expected
        assert plain(hudi.read(location)) == expected
        hudi.write(location, rows(("c", 1, "ü")), OPTIONS)
        Table.open(location).upsert(rows(("c", 3, "ü")))
        assert plain(hudi.read(location)) == plain(Table.open(location).scan(where="`größe` >= 2").to_arrow())


@pytest.mark.parametrize("name", ["a b", "a.b", "a-b", "1a", "😀"])
def test_names_that_lakehouse_refuses_are_refused_by_hudi(name: str, hudi: Hudi, tmp_path: Path) -> None:
    batch = pa.table({"id": ["a"], "ts": [1], name: [1]})
    with pytest.raises(Exception, match="not a name that Avro"):
        Table.create(tmp_path / "ours", name="t", record_key="id", schema=batch.schema)
    options = {"hoodie.table.name": "t", "hoodie.datasource.write.recordkey.field": "id"}
    with pytest.raises(HudiError, match=r"Illegal (initial )?character"):
        hudi.write(str(tmp_path / "theirs"), batch, options, mode="overwrite")
