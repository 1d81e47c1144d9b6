"""The content of views: types, partitions, column changes, and what an export repairs or refuses."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import StaticTable

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import SettingError, UnsupportedError
from lakehouse.model.keys import TimestampFormat
from lakehouse.platform.export.export import ExportedView
from lakehouse.platform.export.iceberg.types import encode_bounds, encode_value
from lakehouse.platform.services.registry import table_service
from lakehouse.spec.options.export import ExportPolicy
from tests.support.tables import make_env
from tests.support.views import FORMATS, check_view, export, partition_values, read_view

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
EVERY_TYPE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "small": pa.array([1, None], pa.int32()),
        "real": pa.array([1.5, float("nan")], pa.float64()),
        "price": pa.array([decimal.Decimal("-1.25"), decimal.Decimal("12345678901234567890.12")], pa.decimal128(30, 2)),
        "day": pa.array([datetime.date(2026, 1, 2), datetime.date(1, 1, 1)]),
        "at": pa.array([NOW, None], pa.timestamp("us", "UTC")),
        "millis": pa.array([NOW.replace(microsecond=0)] * 2, pa.timestamp("ms", "UTC")),
        "local": pa.array([NOW, NOW], pa.timestamp("us")),
        "raw": pa.array([b"\x00\xff", b""]),
        "code": pa.array([b"abcd", b"efgh"], pa.binary(4)),
        "flag": [True, False],
        "long_text": ["x" * 500, "ü" * 70],
        "tags": pa.array([[1, None], []], pa.list_(pa.int64())),
        "place": [{"city": "Oslo", "zip": 1}, None],
        "numbers": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


def orders(home: Path, **declared: Any) -> Table:
    location = f"{home}/orders"
    return Table.create(location, name="orders", record_key=["id"], env=make_env(location), **declared)


def exported(table: Table, name: str, **how: Any) -> ExportedView:
    outcome = export(table, name, **how)
    assert isinstance(outcome, ExportedView), outcome
    return outcome


@pytest.mark.parametrize("name", FORMATS)
def test_view_has_the_values_of_every_type(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(EVERY_TYPE)
    exported(table, name)
    check_view(table, name)


@pytest.mark.parametrize(
    "where",
    ["id = 2", "price < 0", "day = '2026-01-02'", "at >= '2026-01-02T03:04:05.678901+00:00'", "long_text > 'y'"],
)
def test_iceberg_bounds_do_not_exclude_matching_files(where: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(EVERY_TYPE)
    exported(table, "iceberg")
    assert read_view(f"{tmp_path}/orders", "iceberg", where=where).num_rows == 1


def test_iceberg_bounds_exclude_other_files(tmp_path: Path) -> None:
    table = orders(tmp_path, options={"hoodie.parquet.small.file.limit": "0"})
    table.insert(pa.table({"id": [1, 2]}))
    table.insert(pa.table({"id": [8, 9]}))
    exported(table, "iceberg")
    view = StaticTable.from_metadata(f"{tmp_path}/orders")
    assert len(list(view.scan().plan_files())) == 2
    assert len(list(view.scan(row_filter="id > 7").plan_files())) == 1


def test_time_of_day_is_in_iceberg_and_is_refused_in_delta(tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1], "opens": pa.array([datetime.time(8)], pa.time64("us"))}))
    exported(table, "iceberg")
    check_view(table, "iceberg")
    with pytest.raises(UnsupportedError, match=r"'opens' has type time64.*Export the table as Iceberg"):
        export(table, "delta")
    assert not (tmp_path / "orders/_delta_log").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_null_and_empty_partition_values_end_the_partitions_of_a_view(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path, partition_by=["day"])
    table.upsert(pa.table({"id": [1, 2], "day": ["a", None]}))
    assert not exported(table, name).warnings
    check_view(table, name)
    # Null and the empty string share a directory, and here a file.
    table.upsert(pa.table({"id": [3], "day": [""]}))
    outcome = exported(table, name)
    assert "no partitions" in outcome.warnings[0] and outcome.added == 2
    check_view(table, name)
    table.upsert(pa.table({"id": [4], "day": ["a"]}))
    assert exported(table, name).added == 1
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_partition_values_have_the_type_of_the_column(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path, partition_by=["day", "shop", "open"])
    days = pa.array([datetime.date(2026, 1, 2), datetime.date(1969, 12, 31), None])
    table.upsert(pa.table({"id": [1, 2, 3], "day": days, "shop": [7, -7, 7], "open": [True, False, None]}))
    exported(table, name)
    check_view(table, name)
    if name == "iceberg":
        values = [value["day"] for value in partition_values(f"{tmp_path}/orders")]
        assert {*values} == {*days.to_pylist()}
        assert read_view(f"{tmp_path}/orders", name, where="day = '1969-12-31'").num_rows == 1
    else:
        view = DeltaTable(f"{tmp_path}/orders")
        assert view.metadata().partition_columns == ["day", "shop", "open"]
        assert view.to_pyarrow_table(filters=[("shop", "=", -7)]).num_rows == 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "declared",
    [
        {"partition_by": ["at:TIMESTAMP"], "timestamp": TimestampFormat(output_format="yyyy/MM/dd")},
        {"partition_by": ["shop"], "options": {"hoodie.index.type": "GLOBAL_SIMPLE"}},
    ],
    ids=["timestamp", "global"],
)
def test_view_has_no_partitions_if_paths_do_not_decide_values(
    name: str, declared: dict[str, Any], tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("shop", pa.string())])
    table = orders(tmp_path, schema=schema, **declared)
    table.upsert(pa.table({"id": [1, 2], "at": [0, 10**12], "shop": ["a", "b"]}, schema=schema))
    exported(table, name)
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_wider_types_and_new_columns_stay_readable(name: str, tmp_path: Path) -> None:
    options = {"hoodie.parquet.small.file.limit": "0"}
    table = orders(tmp_path, options=options)
    table.insert(pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    exported(table, name)
    table.insert(pa.table({"id": [2], "n": pa.array([2**40], pa.int64()), "new": ["x"]}))
    outcome = exported(table, name)
    assert (outcome.added, outcome.compared) == (1, "")
    check_view(table, name)
    if name == "iceberg":
        assert read_view(f"{tmp_path}/orders", name, where="n = 1").num_rows == 1


@pytest.mark.parametrize("is_exported_first", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_dropped_columns_in_older_files_are_ignored_by_readers(
    name: str, is_exported_first: bool, tmp_path: Path
) -> None:
    table = orders(tmp_path)
    items = [{"sku": "x", "gift": {"text": "hi"}}]
    table.insert(
        pa.table({"id": [1], "qty": [1], "place": [{"city": "Oslo", "zip": 1}], "items": [items], "notes": [["n"]]})
    )
    if is_exported_first:
        exported(table, name)
    table.alter().drop_column("qty").drop_column("place.zip").drop_column("items.element.gift").drop_column(
        "notes"
    ).execute()
    exported(table, name)
    check_view(table, name)
    table.insert(pa.table({"id": [2], "place": [{"city": "Rome"}], "items": [[{"sku": "y"}]]}))
    exported(table, name)
    check_view(table, name)
    # A column of the same name is another column: older files would give it the old values.
    table.alter().add_column("qty", pa.int64()).execute()
    with pytest.raises(UnsupportedError, match="dropped and added again"):
        export(table, name)
    table.insert_overwrite_table(table.scan().to_arrow())
    exported(table, name)
    check_view(table, name)
    assert read_view(f"{tmp_path}/orders", name).column("qty").to_pylist() == [None, None]


@pytest.mark.parametrize("name", FORMATS)
def test_clustering_by_other_columns_rewrites_renamed_files_for_a_view(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.insert(pa.table({"id": [2, 1], "qty": [1, 2]}))
    table.alter().rename_column("qty", "quantity").execute()
    with pytest.raises(UnsupportedError, match=r"clustering\.plan\.strategy\.sort\.columns"):
        export(table, name)
    options = {"hoodie.clustering.plan.strategy.sort.columns": "quantity"}
    sorting = Table.open(f"{tmp_path}/orders", options=options)
    sorting.services.clustering.run(force=True)
    exported(sorting, name)
    check_view(sorting, name)


@pytest.mark.parametrize("name", FORMATS)
def test_renamed_column_is_refused_until_the_files_are_rewritten(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.insert(pa.table({"id": [1], "qty": [1]}))
    exported(table, name)
    table.alter().rename_column("qty", "quantity").execute()
    with pytest.raises(UnsupportedError, match=r"before a? ?column .*was renamed"):
        export(table, name)
    table.upsert(pa.table({"id": [1], "quantity": [2]}))
    exported(table, name)
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_merge_on_read_view_shows_base_files_and_says_so(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path, table_type="MERGE_ON_READ")
    table.upsert(pa.table({"id": [1], "v": [1]}))
    assert "base files only (read-optimized)" in exported(table, name).warnings[-1]
    table.upsert(pa.table({"id": [1], "v": [2]}))
    outcome = export(table, name)
    assert isinstance(outcome, NothingToDo) and "changed log files only" in outcome.reason
    check_view(table, name)
    table.services.compaction.run(force=True)
    assert exported(table, name).added == 1
    assert read_view(f"{tmp_path}/orders", name).column("v").to_pylist() == [2]


@pytest.mark.parametrize("name", FORMATS)
def test_view_of_an_emptied_table_is_empty(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1]}))
    exported(table, name)
    table.rollback(table.commits()[-1][0].requested)
    assert exported(table, name).removed == 1
    assert read_view(f"{tmp_path}/orders", name).num_rows == 0
    assert isinstance(export(table, name), NothingToDo)
    table.upsert(pa.table({"id": [2]}))
    exported(table, name)
    check_view(table, name)


def test_write_by_delta_is_removed_from_the_view(tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1], "v": ["a"]}))
    exported(table, "delta")
    rows = read_view(f"{tmp_path}/orders", "delta")
    write_deltalake(f"{tmp_path}/orders", rows, mode="append")
    assert read_view(f"{tmp_path}/orders", "delta").num_rows == 2
    assert "another program changed the delta view" in exported(table, "delta").warnings[-1]
    check_view(table, "delta")


def test_change_by_iceberg_is_removed_from_the_view(tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1], "v": ["a"]}))
    exported(table, "iceberg")
    path = tmp_path / "orders/metadata/v1.metadata.json"
    document = json.loads(path.read_text())
    # As after a rollback to another snapshot by another program.
    document["snapshots"][0]["snapshot-id"] = document["current-snapshot-id"] = 5
    document["refs"]["main"]["snapshot-id"] = document["snapshot-log"][0]["snapshot-id"] = 5
    (tmp_path / "orders/metadata/v2.metadata.json").write_text(json.dumps(document))
    assert "another program changed the iceberg view" in exported(table, "iceberg").warnings[-1]
    check_view(table, "iceberg")


@pytest.mark.parametrize("name", FORMATS)
def test_table_of_another_program_at_the_place_of_the_view_is_refused(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1]}))
    exported(table, name)
    place = tmp_path / "orders" / ("metadata" if name == "iceberg" else "_delta_log")
    for path in place.glob("*.json"):
        path.write_text(path.read_text().replace("lakehouse.export.view", "other"))
    with pytest.raises(UnsupportedError, match="that no export of this table made"):
        export(table, name)
    shutil.rmtree(place)
    exported(table, name)
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_moved_table_is_exported_with_its_new_location(name: str, tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1]}))
    exported(table, name)
    shutil.move(f"{tmp_path}/orders", f"{tmp_path}/moved")
    moved = Table.open(f"{tmp_path}/moved")
    moved.upsert(pa.table({"id": [2]}))
    exported(moved, name)
    check_view(moved, name)


def test_iceberg_column_ids_are_stable(tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1], "place": [{"city": "Oslo"}]}))
    exported(table, "iceberg")
    before = StaticTable.from_metadata(f"{tmp_path}/orders").schema()
    table.upsert(pa.table({"id": [1], "first": [1], "place": [{"city": "Oslo", "zip": 1}]}))
    exported(table, "iceberg")
    after = StaticTable.from_metadata(f"{tmp_path}/orders").schema()
    for name in ("id", "place", "place.city", "_hoodie_record_key"):
        assert after.find_field(name).field_id == before.find_field(name).field_id
    assert after.find_field("place.zip").field_id > before.highest_field_id
    check_view(table, "iceberg")


def test_iceberg_files_are_divided_again_when_a_view_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.platform.export.iceberg.iceberg_view._FILES_PER_BUCKET", 2)
    table = orders(tmp_path, partition_by=["day"])
    for number in range(14):
        table.upsert(pa.table({"id": [number, 1], "day": [f"d{number}", "d1"]}))
        exported(table, "iceberg")
        check_view(table, "iceberg")
    manifests = StaticTable.from_metadata(f"{tmp_path}/orders").inspect.manifests()
    assert manifests.num_rows >= 4


def test_export_removes_expired_metadata(tmp_path: Path) -> None:
    table, policy = orders(tmp_path), ExportPolicy(retained_versions=2)
    for number in range(25):
        table.upsert(pa.table({"id": [1, number]}))
        for name in FORMATS:
            exported(table, name, policy=policy)
    for name in FORMATS:
        check_view(table, name)
    view = StaticTable.from_metadata(f"{tmp_path}/orders")
    assert len(view.snapshots()) == 3 and len(list((tmp_path / "orders/metadata").iterdir())) <= 12
    assert DeltaTable(f"{tmp_path}/orders", version=23).version() == 23
    assert len(list((tmp_path / "orders/_delta_log").iterdir())) <= 22


@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, -128, -129, 2**62, -(2**62)])
def test_decimal_bounds_are_the_shortest_signed_integers(value: int) -> None:
    data = encode_value(value, pa.decimal128(30, 2))
    assert int.from_bytes(data, "big", signed=True) == value
    assert len(data) == 1 or int.from_bytes(data[1:], "big", signed=True) != value


def test_long_upper_bounds_of_strings_are_cut_upwards() -> None:
    low, high = encode_bounds(b"a" * 99, b"b" * 99, pa.string())
    assert low == b"a" * 64 and high == b"b" * 63 + b"c"
    last = chr(0x10FFFF).encode()
    assert encode_bounds(b"", last * 99, pa.string()) == (b"", None)


def test_service_runs_the_declared_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"id": [1]}))
    location = table.location
    assert not table_service(table.services, "export").due().applies
    declared = Table.open(location, options={"lakehouse.export.formats": "delta,iceberg"})
    service = table_service(declared.services, "export")
    assert service.due().reason == "there is no iceberg view yet, there is no delta view yet"
    assert [view.format for view in service.plan().views] == ["iceberg", "delta"]
    outcome = service.run()
    assert outcome.totals.files == 2 and outcome.instant is None
    assert service.due().reason == "all writes are in the views (iceberg, delta)"
    assert isinstance(service.run(), NothingToDo)
    table.upsert(pa.table({"id": [2]}))
    assert main(["export", "delta", "--table", location, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 1
    fresh = table_service(
        Table.open(location, options={"lakehouse.export.formats": "delta,iceberg"}).services, "export"
    )
    assert fresh.due().reason == "1 write since the last export to iceberg"


def test_unknown_format_is_refused() -> None:
    with pytest.raises(SettingError, match="'orc' is not a format of views; iceberg and delta are"):
        ExportPolicy(formats="iceberg,orc")
