"""Tables that stay open between runs: which state they show, and when they are opened again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table import opened_tables
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import UserError


def create(place: Path, **declared: Any) -> Table:
    return Table.create(place, name="t", record_key="id", **declared)


def rows(*keys: str) -> pa.Table:
    return pa.table({"id": list(keys), "v": [len(keys)] * len(keys)})


def keys(table: Table) -> list[str]:
    return sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())


def test_kept_table_shows_the_commits_of_other_writers(tmp_path: Path) -> None:
    other, tables = create(tmp_path / "t"), OpenedTables()
    other.upsert(rows("a"))
    env = tables.env(str(tmp_path / "t"), {})
    first = tables.open(env)
    other.upsert(rows("b"))
    again = tables.find(tables.env(str(tmp_path / "t"), {}))
    assert again is first and keys(again) == ["a", "b"]
    assert again.loaded.timeline == other.refresh().timeline


def test_kept_table_sends_fewer_requests_than_one_that_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "t")
    create(tmp_path / "t").upsert(rows("a"))
    storage = CountingStorage(LocalStorage(place))
    monkeypatch.setattr(opened_tables, "open_storage", lambda location, options: storage)

    def requests(tables: OpenedTables) -> int:
        storage.reset()
        found = tables.find(tables.env(place, {}))
        assert found is not None and keys(found) == ["a"]
        return sum(storage.counts().values())

    kept = OpenedTables()
    first = requests(kept)
    assert requests(kept) < first == requests(OpenedTables())


def test_other_storage_options_and_functions_open_the_table_again(tmp_path: Path) -> None:
    create(tmp_path / "t").upsert(rows("a"))
    place, tables = str(tmp_path / "t"), OpenedTables()
    env = tables.env(place, {"s3.access-key-id": "old"})
    assert tables.env(place, {"s3.access-key-id": "old"}) is env
    assert tables.env(place, {"s3.access-key-id": "new"}) is not env
    first = tables.open(env)
    assert tables.open(env, allowed_functions=["package.module:function"]) is not first


def test_least_recently_used_tables_are_dropped(tmp_path: Path) -> None:
    tables = OpenedTables(limit=2)
    one, two = (tables.env(str(tmp_path / name), {}) for name in ("one", "two"))
    assert tables.env(str(tmp_path / "one"), {}) is one
    tables.env(str(tmp_path / "three"), {})
    assert tables.env(str(tmp_path / "one"), {}) is one
    assert tables.env(str(tmp_path / "two"), {}) is not two


def test_deleted_table_is_not_found_and_a_new_one_at_its_place_is_read(tmp_path: Path) -> None:
    place, tables = tmp_path / "t", OpenedTables()
    create(place).upsert(rows("a", "b"))
    env = tables.env(str(place), {})
    assert tables.find(env) is not None
    shutil.rmtree(place)
    assert tables.find(env) is None
    with pytest.raises(UserError, match="is not a Hudi table"):
        tables.open(env)
    create(place).upsert(rows("c"))
    before = tables.find(env)
    assert before is not None and keys(before) == ["c"]
    shutil.rmtree(place)
    # Equal properties, but other commits.
    create(place).upsert(rows("d"))
    after = tables.find(env)
    assert after is not None and after is not before and keys(after) == ["d"]


def test_changed_properties_open_the_table_again(tmp_path: Path) -> None:
    table, tables = create(tmp_path / "t"), OpenedTables()
    table.upsert(rows("a"))
    env = tables.env(str(tmp_path / "t"), {})
    first = tables.open(env)
    update_properties(table.loaded.env, {"hoodie.cleaner.commits.retained": "7"})
    again = tables.open(env)
    assert again is not first
    assert again.config.raw["hoodie.cleaner.commits.retained"] == "7"


def test_table_whose_newest_commit_was_undone_is_opened_again(tmp_path: Path) -> None:
    table, tables = create(tmp_path / "t"), OpenedTables()
    table.upsert(rows("a"))
    kept = table.savepoint()
    table.upsert(rows("b"))
    env = tables.env(str(tmp_path / "t"), {})
    first = tables.open(env)
    table.restore(kept.requested)
    again = tables.open(env)
    assert again is not first and keys(again) == ["a"]


def test_table_is_opened_again_after_many_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_tables, "KEPT_USES", 3)
    create(tmp_path / "t").upsert(rows("a"))
    tables = OpenedTables()
    env = tables.env(str(tmp_path / "t"), {})
    found = [tables.open(env) for _ in range(7)]
    assert [one is two for one, two in zip(found[1:], found, strict=False)] == [True, True, False, True, True, False]
