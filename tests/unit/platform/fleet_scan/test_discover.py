"""Discovery of tables: formats, partitioned folders, and the end of the descent."""

from __future__ import annotations

import itertools

import pytest

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Level, Storage
from lakehouse.errors import RetryableError
from lakehouse.platform.fleet_scan.discover import Discovery, discover
from lakehouse.spec.contracts.fleet_scan import TableKind

_numbers = itertools.count()


def store(*paths: str) -> Storage:
    """Return a storage in memory with empty files at these paths."""
    made = open_storage(f"memory://discover-{next(_numbers)}/lake")
    for path in paths:
        made.put(path, b"x")
    return made


def kinds(discovery: Discovery) -> dict[str, TableKind]:
    return {place.path: place.kind for place in discovery.places}


def test_formats_are_found_by_their_metadata_folders() -> None:
    lake = store(
        "sales/orders/.hoodie/hoodie.properties",
        "sales/orders/2026/a.parquet",
        "sales/delta/_delta_log/0.json",
        "sales/delta/a.parquet",
        "ice/berg/metadata/v1.metadata.json",
        "ice/berg/data/a.parquet",
        "plain/flat/a.parquet",
        "plain/flat/_SUCCESS",
        "plain/csv/a.csv",
        "metadata/docs/readme.txt",
        "_temporary/a.parquet",
        ".trash/b/.hoodie/hoodie.properties",
    )
    discovery = discover(lake)
    assert kinds(discovery) == {
        "ice/berg": TableKind.ICEBERG,
        "plain/flat": TableKind.PARQUET,
        "sales/delta": TableKind.DELTA,
        "sales/orders": TableKind.HUDI,
    }
    assert discovery.others == ("metadata/docs", "plain/csv")
    assert discovery.cut == ()


@pytest.mark.parametrize(
    ("paths", "columns"),
    [
        (["t/region=eu/day=1/a.parquet", "t/region=us/day=2/a.parquet"], ("region", "day")),
        (["t/2026/01/31/a.parquet", "t/2025/01/31/a.parquet"], ("", "", "")),
        (["t/2026-01-31/a.parquet"], ("",)),
        (["t/20260131/a.parquet"], ("",)),
        (["t/day=1/a.parquet", "t/day=2/_SUCCESS"], ("day",)),
    ],
)
def test_partitioned_parquet_is_one_table(paths: list[str], columns: tuple[str, ...]) -> None:
    (place,) = discover(store(*paths)).places
    assert (place.path, place.kind, place.columns) == ("t", TableKind.PARQUET, columns)


@pytest.mark.parametrize(
    "paths",
    [
        ["env=prod/orders/.hoodie/hoodie.properties", "env=test/orders/.hoodie/hoodie.properties"],
        ["a=1/b=2/.hoodie/hoodie.properties"],
        ["2026/orders/.hoodie/hoodie.properties", "2026/items/_delta_log/0.json"],
    ],
)
def test_tables_below_folders_with_names_of_partitions_are_found(paths: list[str]) -> None:
    discovery = discover(store(*paths))
    assert sorted(kinds(discovery)) == sorted(path.rsplit("/", 2)[0] for path in paths)


def test_root_of_a_table_ends_the_descent() -> None:
    files = [f"orders/day={day}/{number}.parquet" for day in range(50) for number in range(3)]
    lake = CountingStorage(store("orders/.hoodie/hoodie.properties", *files))
    discovery = discover(lake)
    assert kinds(discovery) == {"orders": TableKind.HUDI}
    assert len(discovery.places[0].folders) == 50
    assert (discovery.folders, lake.counts()["LIST"]) == (2, 2)


def test_one_branch_of_partitioned_parquet_is_listed() -> None:
    lake = CountingStorage(store(*[f"t/a={a}/b={b}/x.parquet" for a in range(20) for b in range(20)]))
    assert kinds(discover(lake)) == {"t": TableKind.PARQUET}
    assert lake.counts()["LIST"] == 4


def test_place_itself_may_be_a_table() -> None:
    assert kinds(discover(store(".hoodie/hoodie.properties"))) == {"": TableKind.HUDI}
    assert kinds(discover(store("a.parquet"))) == {"": TableKind.PARQUET}


def test_folders_below_the_depth_are_reported() -> None:
    discovery = discover(store("a/b/c/.hoodie/hoodie.properties", "a/d/.hoodie/hoodie.properties"), depth=2)
    assert kinds(discovery) == {"a/d": TableKind.HUDI}
    assert discovery.cut == ("a/b/c",)


def test_folder_that_cannot_be_listed_does_not_end_the_scan() -> None:
    class Refusing(CountingStorage):
        def list_dir(self, prefix: str) -> Level:
            if prefix == "secret":
                raise RetryableError("access denied to secret")
            return super().list_dir(prefix)

    discovery = discover(Refusing(store("secret/t/a.parquet", "open/t/a.parquet")))
    assert kinds(discovery) == {"open/t": TableKind.PARQUET, "secret": TableKind.UNREADABLE}
    assert discovery.places[1].problem == "access denied to secret"
