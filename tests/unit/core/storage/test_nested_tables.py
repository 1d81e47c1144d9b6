"""Nested tables: creation and registration are refused; operations on the outer table skip the inner one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.operations.services.partition_purge import purge_table
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.ttl import TtlPlan
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import SeededIds, batch, data_rows, make_env, make_table, row

DAY = 24 * 3600


@pytest.fixture(params=["local", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of an empty lake."""
    return str(tmp_path / "lake") if request.param == "local" else f"memory://{tmp_path.name}/lake"


def made(location: str, seed: int = 0) -> Table:
    """Return a table with rows in partitions a and b; tables of one catalog need different seeds of their ids."""
    table = make_table(env=replace(make_env(location), ids=SeededIds(seed)))
    table.insert(batch([row("k1", p="a"), row("k2", p="b")]))
    return table


def moved_into(outer: Table, place: str) -> Table:
    """Return a table that was copied into the directory of another one."""
    inner = made(f"{outer.location}-elsewhere")
    source, target = open_storage(inner.location), open_storage(f"{outer.location}/{place}")
    for file in source.list(""):
        target.put(file.path, source.get(file.path))
    return Table.open(target.root)


def paths(storage: Storage) -> set[str]:
    """Return the paths of all files."""
    return {file.path for file in storage.list("")}


@pytest.mark.parametrize("place", ["inner", "a/inner", "_tables/deep/inner", ".hoodie/inner"])
def test_create_refuses_a_location_inside_a_table(lake: str, place: str) -> None:
    outer = made(f"{lake}/outer")
    with pytest.raises(UserError, match=f"{place} is inside the table .*outer"):
        made(f"{outer.location}/{place}")
    assert not [path for path in paths(open_storage(outer.location)) if path.startswith(f"{place}/")]


def test_create_refuses_a_location_inside_a_table_behind_a_symbolic_link(tmp_path: Path) -> None:
    outer = made(str(tmp_path / "outer"))
    (tmp_path / "link").symlink_to(tmp_path / "outer" / "a")
    with pytest.raises(UserError, match=r"link/inner is inside the table .*outer"):
        made(str(tmp_path / "link" / "inner"))
    assert not (tmp_path / "outer" / "a" / "inner").exists()
    (tmp_path / "beside").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "beside")
    assert len(data_rows(made(str(tmp_path / "lake" / "t")))) == len(data_rows(outer))


def test_create_refuses_a_location_that_contains_a_table(lake: str) -> None:
    made(f"{lake}/_inner")
    with pytest.raises(UserError, match=r"contains the table .*_inner"):
        made(lake)


def test_tables_in_sibling_directories_are_allowed(lake: str) -> None:
    for name in ("orders", "orders_2", "orders-3"):
        assert len(data_rows(made(f"{lake}/{name}"))) == 2


def test_create_needs_one_request_per_parent_directory_up_to_16() -> None:
    requests = {}
    for levels in (1, 4, 40):
        place = "/".join(["x"] * levels)
        storage = CountingStorage(open_storage(f"memory://deep-{levels}/{place}"))
        make_table(env=make_env(storage=storage))
        requests[levels] = storage.counts()["GET"]
    assert requests[4] - requests[1] == 3
    assert requests[40] - requests[1] == 15


def test_listing_skips_files_of_a_nested_table(lake: str, caplog: pytest.LogCaptureFixture) -> None:
    outer = made(f"{lake}/outer")
    before = data_rows(outer)
    moved_into(outer, "a/inner")
    assert data_rows(outer) == before
    assert outer.validate().findings == ()
    where_a = {r["id"] for r in outer.scan(where="p = 'a'").to_arrow().to_pylist()}
    assert where_a == {"k1"}
    assert "a/inner is another table" in caplog.text


def test_services_keep_files_of_nested_tables(lake: str) -> None:
    outer = made(f"{lake}/outer")
    inner = moved_into(outer, "inner")
    storage = open_storage(inner.location)
    storage.put("a/orphan-0_0-1-1_20300101000000000.parquet", b"")
    before = paths(storage)
    outer.refresh().env.clock.sleep(10 * 365 * DAY)
    assert outer.services.orphans(remove=True) == ()
    outer.upsert(batch([row("k1", p="a", ts=2)]))
    clean = outer.with_options({"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"})
    clean.with_options({"hoodie.clean.fileversions.retained": "1"}).services.clean.run(force=True)
    ttl = outer.with_options({"lakehouse.ttl.creation.age": "1d"}).services
    planned = ttl.ttl.plan(force=True)
    assert isinstance(planned, TtlPlan)
    expired = [expiry.partition for expiry in planned.expired]
    assert set(expired) <= {"a", "b"} and expired
    ttl.ttl.run(force=True)
    assert paths(storage) == before


def test_purge_keeps_nested_tables_and_returns_their_paths(lake: str) -> None:
    outer = made(f"{lake}/outer")
    inner = moved_into(outer, "a/inner")
    before = paths(open_storage(inner.location))
    assert purge_table(open_storage(outer.location)) == ("a/inner",)
    assert paths(open_storage(inner.location)) == before
    assert paths(open_storage(outer.location)) == {f"a/inner/{path}" for path in before}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Return an empty catalog."""
    return load_catalog(f"sqlite:///{tmp_path}/catalog.db")


def test_catalog_refuses_to_register_a_nested_table(lake: str, catalog: Catalog) -> None:
    outer = made(f"{lake}/outer")
    inner = moved_into(outer, "a/inner")
    with pytest.raises(UserError, match="is inside the table"):
        catalog.register_table("sales.inner", inner.location)
    assert catalog.list_tables() == ()


def test_catalog_refuses_a_location_that_contains_a_registered_table(lake: str, catalog: Catalog) -> None:
    inner = made(f"{lake}/outer/inner")
    catalog.register_table("sales.inner", inner.location)
    spec = parse_spec(f"table: sales.outer\nlocation: {lake}/outer\nrecord_key: [id]\n", source="spec")
    with pytest.raises(UserError, match="are nested"):
        catalog.create_table(spec)
    other = made(f"{lake}/OUTER", seed=1)
    assert catalog.register_table("sales.other", other.location).location == other.location


def test_drop_with_purge_returns_the_paths_of_nested_tables(lake: str, catalog: Catalog) -> None:
    outer = made(f"{lake}/outer")
    catalog.register_table("sales.outer", outer.location)
    moved_into(outer, "inner")
    assert catalog.drop_table("sales.outer", purge=True) == ("inner",)
    assert catalog.list_tables() == ()
