"""Keys in two partitions of a table with a record index: reads by key and by an indexed value find all rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from tests.support.tables import Shape as TableShape
from tests.support.tables import batch, make_env, make_table, row

PARTITIONED = {"hoodie.metadata.enable": "true", "hoodie.metadata.record.level.index.enable": "true"}
GLOBAL = {"hoodie.metadata.enable": "true", "hoodie.metadata.global.record.level.index.enable": "true"}


def table_of(folder: Path, index: str, **shape: object) -> Table:
    """Return a table with an index of the column v, and the key k1 in the partitions a and b."""
    options = PARTITIONED if index == "RECORD_LEVEL_INDEX" else GLOBAL
    table = make_table(TableShape(index=index, options=options, **shape), env=make_env(str(folder / "t")))  # type: ignore[arg-type]
    table.upsert(batch([row("k1", p="a", v="x"), row("k2", p="a", v="y")]))
    table.services.create_index("v")
    table.services.index.run()
    table.upsert(batch([row("k1", p="b", v="x"), row("k3", p="b", v="z")]))
    return Table.open(table.location, env=table._env)


def found(table: Table, where: str) -> list[tuple[str, str]]:
    """Return key and partition of the rows of a condition, sorted."""
    rows = table.scan(["id", "p"], where).to_arrow()
    return sorted(zip(rows.column("id").cast(pa.string()).to_pylist(), rows.column("p").to_pylist(), strict=True))


@pytest.mark.parametrize("index", ["SIMPLE", "BLOOM", "BUCKET", "RECORD_LEVEL_INDEX"])
def test_reads_find_the_key_in_both_partitions(tmp_path: Path, index: str) -> None:
    """apache/hudi#11194: a record index has one place for each key, and these indexes keep keys unique by partition."""
    table = table_of(tmp_path, index)
    assert found(table, "id = 'k1'") == [("k1", "a"), ("k1", "b")]
    assert found(table, "v = 'x'") == [("k1", "a"), ("k1", "b")]
    table.upsert(batch([row("k1", p="b", v="changed", ts=9)]))
    table = Table.open(table.location, env=table._env)
    assert found(table, "v = 'x'") == [("k1", "a")]


def test_unique_keys_are_found_by_the_index(tmp_path: Path) -> None:
    """apache/hudi#11194, for a global index: one file group is read."""
    table = table_of(tmp_path, "GLOBAL_SIMPLE")
    assert table.scan(["id"], "id = 'k3'").explain().step("record_index").partitions == 1
    assert table.scan(["id"], "v = 'z'").explain().step("secondary_index").partitions == 1
