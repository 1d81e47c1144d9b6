"""Inserts with a spread column: large tenants get file groups of their own, learnt from earlier commits or declared."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.planning.spread_history import SPREAD_KEY, SpreadHistory, spread_history
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.commit import WriteStat

SIZES = {"big": 400, "middle": 60, "a": 5, "b": 3, None: 2}


def make(location: Path, **options: str) -> Table:
    """Create a table whose tenants are large from 100 rows of a commit."""
    spread = {"lakehouse.write.spread.column": "tenant", "lakehouse.write.spread.min.bytes": str(100 * 256)}
    return Table.create(str(location), name="t", record_key="id", partition_by="day", options={**spread, **options})


def batch(number: int) -> pa.Table:
    """Return rows of all tenants on two days."""
    tenants = [tenant for tenant, rows in SIZES.items() for _ in range(rows)]
    ids = [f"{number}-{position}" for position in range(len(tenants))]
    return pa.table({"id": ids, "tenant": tenants, "day": ["x" if i % 2 else "y" for i in range(len(ids))]})


def tenants_of_groups(table: Table) -> dict[tuple[str, str], set[str | None]]:
    """Return the tenants of each file group by day and file id."""
    rows = table.scan(columns=["day", "_hoodie_file_name", "tenant"]).to_arrow()
    found: dict[tuple[str, str], set[str | None]] = {}
    columns = (rows.column(name).to_pylist() for name in ("day", "_hoodie_file_name", "tenant"))
    for day, file, tenant in zip(*columns, strict=True):
        found.setdefault((day, file.partition("_")[0]), set()).add(tenant)
    return found


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_large_tenants_get_groups_of_their_own_once_a_commit_shows_them(tmp_path: Path, operation: str) -> None:
    table = make(tmp_path / "t")
    getattr(table, operation)(batch(0))
    assert [tenants == set(SIZES) for tenants in tenants_of_groups(table).values()] == [True, True]
    learnt = json.loads(table.commits()[-1][1].extra[SPREAD_KEY])
    assert learnt == {"column": "tenant", "rows": {"big": 400, "middle": 60, "a": 5, "b": 3}, "groups": {}}
    getattr(table, operation)(batch(1))
    own = {group for group, tenants in tenants_of_groups(table).items() if tenants == {"big"}}
    assert {day for day, _ in own} == {"x", "y"} and len(own) == 2
    getattr(table, operation)(batch(2))
    groups = tenants_of_groups(table)
    # The groups of the second commit are small, so they take the rows of the third one; others share groups.
    assert {group for group, tenants in groups.items() if tenants == {"big"}} == own
    assert len(groups) == 4
    found = Counter(table.scan(columns=["tenant"]).to_arrow().column("tenant").to_pylist())
    assert found == {tenant: 3 * rows for tenant, rows in SIZES.items()}


def test_declared_tenants_are_large_from_the_first_commit(tmp_path: Path) -> None:
    table = make(tmp_path / "t", **{"lakehouse.write.spread.large": "a, never"})
    table.insert(batch(0))
    own = [tenants for tenants in tenants_of_groups(table).values() if "a" in tenants]
    assert own and all(tenants == {"a"} for tenants in own)
    # An upsert finds the rows wherever they are.
    table.upsert(batch(0).slice(0, 470))
    assert sum(SIZES.values()) == table.scan().to_arrow().num_rows


def test_learnt_tenants_share_groups_with_spreading_off(tmp_path: Path) -> None:
    options = {"lakehouse.write.spread.min.bytes": "0", "lakehouse.write.spread.large": "a"}
    table = make(tmp_path / "t", **options)
    table.insert(batch(0))
    table.insert(batch(1))
    assert {frozenset(tenants) for tenants in tenants_of_groups(table).values()} == {
        frozenset({"a"}),
        frozenset(SIZES) - {"a"},
    }


def test_options_that_a_table_cannot_follow_are_refused(tmp_path: Path) -> None:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    with pytest.raises(UserError, match="the bucket index determines the file group of a key"):
        make(tmp_path / "b", **buckets).insert(batch(0))
    with pytest.raises(UserError, match=r"no such column of a plain type\. Did you mean 'tenant'"):
        make(tmp_path / "n", **{"lakehouse.write.spread.column": "tenants"}).insert(batch(0))


def test_history_keeps_frequent_values_and_small_groups() -> None:
    def stat(file_id: str, size: int) -> WriteStat:
        return WriteStat(partition="", file_id=file_id, path=file_id, size_bytes=size)

    first = SpreadHistory(column="c").after({"a": 100, "b": 3}, {"f": "a", "g": "a"}, [stat("f", 9), stat("g", 10)], 10)
    assert (first.rows, first.groups) == ({"a": 100.0, "b": 3.0}, {"f": "a"})
    second = first.after({"a": 50, "d": 8}, {}, [stat("f", 12)], 10)
    assert (second.rows, second.groups) == ({"a": 75.0, "d": 4.0, "b": 1.5}, {})
    assert second.large(frozenset({"z"}), 4) == ("a", "d", "z")
    assert spread_history(second.to_json(), "c") == second
    assert spread_history(second.to_json(), "other") == SpreadHistory(column="other")
    many = SpreadHistory(column="c").after({f"v{n}": n + 1 for n in range(300)}, {}, [], 10)
    assert len(many.rows) == 256 and "v0" not in many.rows
    with pytest.raises(CorruptTableError, match="of a commit is unreadable"):
        spread_history('{"column": "c", "rows": 3}', "c")
