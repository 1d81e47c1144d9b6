"""Reads that find file groups by a secondary index return the same rows as reads without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from tests.support.indexes import table_with_metadata
from tests.support.tables import batch, row


def indexed_table(folder: Path, **shape: object) -> Table:
    # Keys are unique in the table, so that reads use the index.
    table = table_with_metadata(folder, index="GLOBAL_SIMPLE", **shape)
    table.insert(batch([row(f"k{n}", p="abc"[n % 3], v=f"v{n % 6}", ts=n) for n in range(24)]))
    table.services.create_index("v")
    table.services.index.run()
    table.upsert(batch([row("k0", p="a", v="moved", ts=99), row("k1", p="b", v="a$\\b", ts=99)]))
    table.delete(["k2"])
    return table


CONDITIONS = [
    "v = 'v3'",
    "v = 'moved'",
    "v = 'v0'",
    "v = 'a$\\b'",
    "v = 'nothing'",
    "v IN ('v1', 'moved', 'x')",
    "v = 'v2' AND p = 'c'",
    "v = 'v2' OR p = 'a'",
    "v > 'v3'",
    "NOT v = 'v3'",
]


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rows_of_a_condition_do_not_depend_on_the_index(type: str, tmp_path: Path) -> None:
    table = indexed_table(tmp_path, type=type)
    with_index = {
        where: sorted(r["id"] for r in table.scan(["id"], where).to_arrow().to_pylist()) for where in CONDITIONS
    }
    table.services.drop_index("v")
    for where in CONDITIONS:
        assert with_index[where] == sorted(r["id"] for r in table.scan(["id"], where).to_arrow().to_pylist()), where
    assert with_index["v = 'moved'"] == ["k0"] and with_index["v = 'nothing'"] == []


def test_equality_opens_only_file_groups_of_the_value(tmp_path: Path) -> None:
    table = indexed_table(tmp_path)
    step = table.scan(["id"], "v = 'moved'").explain().step("secondary_index")
    assert "1 record key of v in 1 file group" in step.reason
    assert [name for name, _ in _steps(table, "v > 'moved'") if name == "secondary_index"] == []


def test_index_is_not_used_for_earlier_versions(tmp_path: Path) -> None:
    table = indexed_table(tmp_path)
    first = table.timeline.writes().instants[0].requested
    assert table.scan(["id"], "v = 'v0'", as_of=first).count() == 4
    assert table.scan(["id"], "v = 'v0'").count() == 3


def test_index_that_is_being_built_is_not_used(tmp_path: Path) -> None:
    table = indexed_table(tmp_path)
    table.services.create_index("region")
    table.services.index.schedule()
    assert "secondary_index" not in dict(_steps(table, "region = 'r'"))


def _steps(table: Table, where: str) -> list[tuple[str, str]]:
    return [(step.name, step.reason) for step in table.scan(["id"], where).explain()]
