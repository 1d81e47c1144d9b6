"""Data skipping without a metadata table: ranges come from commits, archived commits, and footers at last."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.operations.read import file_metadata
from lakehouse.core.planning.scan import ScanExplanation
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from tests.support.archived import EAGERLY

FILES = 8


def made(tmp_path: Path, table_type: str) -> tuple[Table, CountingStorage]:
    """Return a table of eight files (and a log if it is merge-on-read) with distinct values."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    table = Table.create(
        storage.root,
        name="t",
        record_key=["id"],
        partition_by=["p"],
        ordering="v",
        table_type=table_type,
        options=EAGERLY | {"hoodie.metadata.enable": "false"},
        env=Env(storage=storage),
    )
    for number in range(FILES):
        table.bulk_insert(batch(number, 100 * number))
    table.upsert(batch(2, 250))
    return table, storage


def batch(number: int, value: int) -> pa.Table:
    return pa.table({"id": [f"k{number}"], "p": ["a" if number < FILES // 2 else "b"], "v": [value]})


def opened(storage: CountingStorage, table: Table, where: str) -> tuple[set[str], list[int]]:
    """Return the data files that a query of a new process opens, and the values that it returns."""
    fresh = Table.open(storage.root, options=EAGERLY, env=Env(storage=storage))
    scan = fresh.scan(["v"], where).plan()
    files = {file.path for s in scan.plan.slices for file in (*((s.base,) if s.base else ()), *s.logs)}
    values = [value for found in scan.batches() for value in found.column("v").to_pylist()]
    return files, sorted(values)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_point_query_opens_the_same_files_before_and_after_archive(tmp_path: Path, table_type: str) -> None:
    table, storage = made(tmp_path, table_type)
    queries = ["v = 700", "v = 250", "v BETWEEN 300 AND 400", "v = 555", "p = 'a' AND v = 100", "p = 'b'", "id = 'k5'"]
    before = [opened(storage, table, where) for where in queries]
    assert [len(files) for files, _ in before][:1] == [1]
    table.services.archive.run()
    assert len(table.archived()) >= FILES // 2
    assert [opened(storage, table, where) for where in queries] == before


def test_archive_is_read_once_and_only_if_column_ranges_can_skip_files(tmp_path: Path) -> None:
    table, storage = made(tmp_path, "COPY_ON_WRITE")
    table.services.archive.run()
    fresh = Table.open(storage.root, options=EAGERLY, env=Env(storage=storage))

    def requests(where: str | None) -> dict[str, int]:
        storage.reset()
        fresh.scan(["v"], where).plan()
        return storage.counts()

    plain = requests(None)
    assert requests("p = 'a'")["GET"] <= plain["GET"]
    first, second = requests("v = 700"), requests("v = 700")
    assert first["LIST"] == plain["LIST"] and second == requests("v = 100")
    assert second["GET"] <= plain["GET"] < first["GET"]


def test_explain_names_the_commits_and_the_archive_from_which_ranges_come(tmp_path: Path) -> None:
    table, storage = made(tmp_path, "COPY_ON_WRITE")
    active = table.scan(["v"], "v = 700").explain()
    assert (active.step("files").files, active.step("commits").files) == (FILES, 1)
    table.services.archive.run()
    fresh = Table.open(storage.root, options=EAGERLY, env=Env(storage=storage))
    archived = fresh.scan(["v"], "v = 0").explain()
    assert archived.step("commits").files > archived.step("archive").files == 1
    assert "archived commits" in archived.step("archive").reason


def test_footers_are_the_last_source_of_ranges_and_only_of_large_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], partition_by=["p"], ordering="v")
    for number in range(4):
        table.bulk_insert(batch(number, 100 * number))
    # Commits state no ranges of columns that the metadata table has, so without it only footers have them.
    drop_metadata(table.refresh().env)

    def read() -> tuple[ScanExplanation, list[int]]:
        scan = Table.open(table.location).scan(["v"], "v = 200")
        return scan.explain(), scan.to_arrow().column(0).to_pylist()

    small, values = read()
    assert values == [200] and "footers" not in [step.name for step in small]
    monkeypatch.setattr(file_metadata, "_FOOTER_WORTH_BYTES", 0)
    large, values = read()
    assert values == [200] and large.step("footers").files == 1
    assert large.step("footers").reason.startswith("column ranges in footers of 4 base files")
    monkeypatch.setattr(file_metadata, "_MAX_FOOTERS", 3)
    assert "footers" not in [step.name for step in read()[0]]
