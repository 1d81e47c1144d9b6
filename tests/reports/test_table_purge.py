"""A purge deletes the files of one table, and reports the files of other owners below its location."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.services.partition_purge import purge_table
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.catalog import load_catalog

NAME = "sales.orders"
ROWS = pa.table({"id": ["a", "b"], "day": ["2026-01-01", "2026-01-02"], "ts": [1, 1]})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the location of a table, and configure a catalog."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    return tmp_path / "lake" / "orders"


def files_of(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


FOREIGN = {
    "day=2026-01-01/notes.txt",
    "export/part-0.parquet",
    "export/deep/x.csv",
    "readme.txt",
    "_SUCCESS",
    "manual/aaaa-0_0-1-1_20260101000000000.parquet",
}


def partitioned(place: Path) -> Table:
    options = {"hoodie.datasource.write.hive_style_partitioning": "true"}
    table = Table.create(
        str(place), name=NAME, record_key="id", partition_by="day", table_type="MOR", ordering="ts", options=options
    )
    table.insert(ROWS)
    table.upsert(ROWS)
    return table


def test_purge_deletes_the_files_of_the_table_and_reports_all_others(place: Path) -> None:
    """apache/iceberg#4159: other files below the location belong to other owners."""
    partitioned(place)
    (place / "day=2026-01-01" / "..hoodie_partition_metadata.crc").write_bytes(b"crc")
    for path in FOREIGN:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(path)
    with load_catalog() as catalog:
        catalog.register_table(NAME, str(place))
        kept = catalog.drop_table(NAME, purge=True)
    assert kept == ("_SUCCESS", "day=2026-01-01/notes.txt", "export/", "manual/", "readme.txt")
    assert {path: data.decode() for path, data in files_of(place).items()} == {path: path for path in FOREIGN}


def test_purge_deletes_a_whole_table_and_its_folder(place: Path) -> None:
    """apache/iceberg#14980: a purge leaves no file of the table behind."""
    partitioned(place)
    assert purge_table(LocalStorage(str(place))) == ()
    assert not place.exists() or files_of(place) == {}


class Crash(Exception):
    """The end of the process."""


def test_purge_that_crashed_is_completed_by_a_repetition(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/iceberg#14980: a purge that is interrupted leaves files, and the table is gone."""
    storage = MemoryStorage()
    for path, data in files_of(Path(partitioned(place).location)).items():
        storage.put(path, data)
    before = {file.path for file in storage.list("")}
    for number in range(1, 5):
        target, calls = MemoryStorage(), 0
        for path in before:
            target.put(path, storage.get(path))
        whole = target.delete_many

        def delete_many(paths: Any, last: int = number, whole: Any = whole) -> int:
            nonlocal calls
            calls += 1
            listed = list(paths)
            if calls < last:
                return int(whole(listed))
            # An object store deletes some files of a call, in any order.
            whole(listed[::2] if len(listed) > 1 else [])
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(target, "delete_many", delete_many)
            with pytest.raises(Crash):
                purge_table(target)
        assert purge_table(target) == ()
        assert target.list("") == []
