"""Exports of a snapshot: plain Parquet files in folders of partitions, and a copy that is a table of Hudi."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lakehouse
from lakehouse import CorruptTableError, Table, UserError
from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.platform.export.hudi_copy import export_hudi
from lakehouse.platform.export.parquet_snapshot import ParquetSnapshot, export_parquet
from tests.support.parquet_folders import orders, regions

COLUMNS = ["id", "amount", "region"]


def _rows(*parts: pa.Table) -> pa.Table:
    return pa.concat_tables(parts)


def _table(folder: Path, **arguments: object) -> Table:
    defaults = {
        "name": "orders",
        "record_key": "id",
        "partition_by": "region",
        "ordering": "ts",
        "table_type": "MERGE_ON_READ",
        "options": {"hoodie.metadata.enable": "false"},
    }
    table = Table.create(folder / "table", **{**defaults, **arguments})  # type: ignore[arg-type]
    table.upsert(_rows(orders(0, 30, region="north"), orders(30, 40, region="a/b")))
    table.upsert(orders(5, 6, region="north").set_column(1, "amount", pa.array([-5], pa.int64())))
    return table


def _content(rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in rows.select(COLUMNS).to_pylist())


def _hive(folder: Path) -> pa.Table:
    parts = ds.HivePartitioning(pa.schema([("region", pa.string())]), segment_encoding="uri")
    files = [str(path) for path in sorted(folder.rglob("*.parquet"))]
    return ds.dataset(files, partitioning=parts, partition_base_dir=str(folder)).to_table()


def _export(table: Table, target: Storage) -> ParquetSnapshot:
    return export_parquet(table.refresh(), table.services.policies, target)


def test_parquet_export_has_the_merged_rows_in_hive_folders(tmp_path: Path) -> None:
    table = _table(tmp_path, options={"hoodie.datasource.write.partitionpath.urlencode": "true"})
    result = _export(table, LocalStorage(str(tmp_path / "out")))
    assert (result.rows, result.partitions, result.files) == (40, 2, 2)
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        "region=north",
        "region=a%2Fb",
        "_lakehouse_export",
    }
    assert (tmp_path / "out/_SUCCESS").exists()
    assert _content(_hive(tmp_path / "out")) == _content(table.scan().to_arrow())
    assert _export(table, LocalStorage(str(tmp_path / "out"))) == result


def test_parquet_export_of_global_index_is_flat(tmp_path: Path) -> None:
    table = _table(tmp_path, options={"hoodie.index.type": "GLOBAL_SIMPLE"}, table_type="COPY_ON_WRITE")
    _export(table, LocalStorage(str(tmp_path / "out")))
    rows = ds.dataset([str(path) for path in (tmp_path / "out").glob("*.parquet")]).to_table()
    assert _content(rows) == _content(table.scan().to_arrow())


def test_killed_parquet_export_continues_with_the_same_version(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Dying(FaultyStorage):
        left = 0

        def step(self, name, call):  # type: ignore[no-untyped-def]
            if type(self).left == 0:
                raise Killed(name)
            type(self).left -= 1
            return call()

    table, kills = _table(tmp_path), 0
    expected = _content(table.scan().to_arrow())
    first = table.timeline.writes().by_completion()[-1].requested
    while True:
        Dying.left = kills
        try:
            result = _export(table, Dying(LocalStorage(str(tmp_path / "out"))))
            break
        except Killed:
            kills += 1
        assert not (tmp_path / "out/_SUCCESS").exists()
        if kills == 4:
            table.upsert(orders(90, 95, region="west"))
    assert kills > 5 and result.instant == first
    assert _content(_hive(tmp_path / "out")) == expected
    with pytest.raises(UserError, match="complete export of an earlier version"):
        _export(table, LocalStorage(str(tmp_path / "out")))


def test_continued_export_refuses_files_that_are_gone(tmp_path: Path) -> None:
    table = _table(tmp_path, table_type="COPY_ON_WRITE")
    target = LocalStorage(str(tmp_path / "out"))
    _export(table, target)
    (tmp_path / "out/_SUCCESS").unlink()
    (tmp_path / "out/_lakehouse_export/000000.json").unlink()
    for path in (tmp_path / "table/north").glob("*.parquet"):
        path.unlink()
    for path in (tmp_path / "table/a").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(CorruptTableError, match="does not exist although the table names it"):
        _export(table, target)


def test_hudi_copy_has_the_rows_and_settings_of_the_table(tmp_path: Path) -> None:
    table = _table(tmp_path)
    result = export_hudi(table.refresh(), Env(storage=LocalStorage(str(tmp_path / "copy"))))
    copy = Table.open(tmp_path / "copy")
    assert result.rows == 40 and _content(copy.scan().to_arrow()) == _content(table.scan().to_arrow())
    assert copy.config.identity.id != table.config.identity.id
    assert (copy.config.table_type, copy.config.keys) == (table.config.table_type, table.config.keys)
    assert not copy.validate().findings
    copy.upsert(orders(0, 2, region="north"))
    assert copy.scan().to_arrow().num_rows == 40
    with pytest.raises(UserError, match="is already a table"):
        export_hudi(table.refresh(), Env(storage=LocalStorage(str(tmp_path / "copy"))))


def test_hudi_copy_of_bootstrapped_table_needs_no_source(tmp_path: Path) -> None:
    source = regions(tmp_path / "source")
    table = Table.bootstrap(tmp_path / "table", source=source, name="orders", record_key="id", ordering="ts")
    export_hudi(table.refresh(), Env(storage=LocalStorage(str(tmp_path / "copy"))))
    expected = _content(table.scan().to_arrow())
    source.rename(tmp_path / "elsewhere")
    copy = Table.open(tmp_path / "copy")
    assert _content(copy.scan().to_arrow()) == expected and not copy.validate().findings


def test_exports_refuse_places_with_other_files(tmp_path: Path) -> None:
    table = _table(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a.txt").write_text("x")
    target = LocalStorage(str(tmp_path / "full"))
    with pytest.raises(UserError, match="its files are of no export"):
        _export(table, target)
    with pytest.raises(UserError, match="is not empty"):
        export_hudi(table.refresh(), Env(storage=target))
    with pytest.raises(UserError, match="contain each other"):
        _export(table, LocalStorage(str(tmp_path / "table/out")))


def test_exports_from_python_have_the_rows_of_the_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", table_type="MERGE_ON_READ")
    table.insert(pa.table({"id": ["a", "b"], "v": [1, 1]}))
    table.upsert(pa.table({"id": ["a"], "v": [2]}))
    exported = lakehouse.export_to_parquet(table, tmp_path / "files")
    newest = table.refresh().timeline.writes().by_completion()[-1].requested
    assert (exported.rows, exported.instant) == (2, newest)
    rows = pq.read_table(tmp_path / "files").sort_by("id")
    assert rows.select(["id", "v"]).to_pylist() == [{"id": "a", "v": 2}, {"id": "b", "v": 1}]
    assert lakehouse.copy_table(table, tmp_path / "copy").rows == 2
    copied = Table.open(tmp_path / "copy").scan(columns=["id", "v"]).to_arrow().sort_by("id")
    assert copied.to_pylist() == rows.select(["id", "v"]).to_pylist()
    with pytest.raises(UserError, match="is not empty"):
        lakehouse.export_to_parquet(table, tmp_path / "copy")
