"""Bloom indexes with filters in the metadata table: files without keys of the batch are not opened (MDT-13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.keys import key_lookup
from lakehouse.core.files.keys.key_lookup import CandidateKeys
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.write import staged
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

FILTERS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.bloom.index.prune.by.ranges": "false",
}
RANGES = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.parquet.small.file.limit": "0",
}
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def three_files(index: str, type_: str, **options: str) -> Table:
    """Return a table of one partition with three files of two keys each."""
    table = make_table(Shape(index=index, type=type_, fills_small_files=False, options={**FILTERS, **options}))
    for number in range(3):
        table.insert(batch([row(f"{number}-a"), row(f"{number}-b")]))
    return table


def searched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each searched base file adds whether its own filter is asked."""
    found: list[bool] = []
    real = staged._tag

    def tag(context: Any, read: Any, attempt: Any, task: Any) -> Any:
        found.extend([task.asks_filters] * (len(task.bases) + len(task.slices)))
        return real(context, read, attempt, task)

    monkeypatch.setattr(staged, "_tag", tag)
    return found


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("index", ["BLOOM", "GLOBAL_BLOOM"])
def test_upsert_opens_only_files_that_stored_filters_do_not_exclude(
    index: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = three_files(index, type_)
    files = searched(monkeypatch)
    table.upsert(batch([row("1-a", ts=2, v="new"), row("new", v="new")]))
    assert files == [False]
    found = {r["id"]: r["v"] for r in data_rows(table)}
    assert found == dict.fromkeys(["0-a", "0-b", "1-b", "2-a", "2-b"]) | {"1-a": "new", "new": "new"}


@pytest.mark.parametrize("options", [{"hoodie.bloom.index.use.metadata": "false"}, FILTERS], ids=["files", "metadata"])
def test_upsert_asks_filters_of_files_unless_the_metadata_table_has_them(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = three_files("BLOOM", "COPY_ON_WRITE", **options)
    files = searched(monkeypatch)
    table.upsert(batch([row("2-b", ts=2, v="new")]))
    assert files == ([True] * 3 if options is not FILTERS else [False])
    assert sorted(r["id"] for r in data_rows(table)) == ["0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]


def test_stored_filters_are_read_once_for_several_upserts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = three_files("BLOOM", "MERGE_ON_READ")
    read: list[int] = []
    real = MetadataTable._stored_filters

    def counted(metadata: MetadataTable, files: pa.Table) -> pa.Table:
        read.append(files.num_rows)
        return real(metadata, files)

    monkeypatch.setattr(MetadataTable, "_stored_filters", counted)
    table.upsert(batch([row("1-a", ts=2, v="new")]))
    table.upsert(batch([row("2-b", ts=2, v="new")]))
    assert read == [3]
    table.insert(batch([row("3-a")]))
    table.upsert(batch([row("3-a", ts=2, v="new"), row("0-a", ts=2, v="new")]))
    assert read == [3, 1]
    assert {r["id"] for r in data_rows(table) if r["v"] == "new"} == {"1-a", "2-b", "3-a", "0-a"}


def test_delete_finds_its_keys_by_stored_filters() -> None:
    table = three_files("BLOOM", "MERGE_ON_READ")
    table.delete(batch([row("0-a"), row("2-b"), row("none")]))
    table.upsert(batch([row("0-a", ts=9, v="again")]))
    assert {r["id"] for r in data_rows(table)} == {"0-a", "0-b", "1-a", "1-b", "2-a"}


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "memory"])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("index", ["BLOOM", "GLOBAL_BLOOM"])
def test_files_whose_range_holds_no_key_are_not_opened(
    index: str, type_: str, is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(index=index, type=type_, fills_small_files=False, options=RANGES)
    table = make_table(shape, env=make_env(str(tmp_path / "table") if is_local else None))
    # Ranges overlap in b only: 0-b is after the range of the first file, and before that of the second one.
    for first, last in (("0-a", "0-c"), ("1-a", "1-e"), ("1-b", "1-d"), ("2-a", "2-b")):
        table.insert(batch([row(first), row(last)]))
    opened = opened_files(monkeypatch)
    table.upsert(batch([row("1-b", ts=2, v="new"), row("0-z", v="new"), row("3", v="new")]))
    assert len(set(opened)) == 2
    new = {r["id"] for r in data_rows(table) if r["v"] == "new"}
    assert (new, len(data_rows(table))) == ({"1-b", "0-z", "3"}, 10)


@pytest.mark.parametrize("options", [{"hoodie.bloom.index.prune.by.ranges": "false"}, {}], ids=["off", "astral"])
def test_files_are_opened_without_ranges_or_with_bounds_of_another_order(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(Shape(index="BLOOM", fills_small_files=False, options={**RANGES, **options}))
    # In UTF-16 the first key of each file is after the second one, in UTF-8 before it.
    names = ("\ue000", "\U0001f600") if not options else ("-a", "-b")
    for number in range(4):
        table.insert(batch([row(f"{number}{names[0]}"), row(f"{number}{names[1]}")]))
    opened = opened_files(monkeypatch)
    table.upsert(batch([row(f"1{names[0]}", ts=2, v="new")]))
    assert len(set(opened)) == 4
    assert [r["id"] for r in data_rows(table) if r["v"] == "new"] == [f"1{names[0]}"]


def test_ranges_of_pruned_files_still_find_keys_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(Shape(index="BLOOM", type="MERGE_ON_READ", fills_small_files=False, options=RANGES))
    for number in range(4):
        table.insert(batch([row(f"{number}-a"), row(f"{number}-b")]))
    table.upsert(batch([row("2-b", ts=2, v="logged")]))
    table.delete(batch([row("3-b")]))
    table.upsert(batch([row("2-b", ts=3, v="new"), row("3-b", ts=3, v="again")]))
    found = {r["id"]: r["v"] for r in data_rows(table)}
    assert (found["2-b"], found["3-b"], len(found)) == ("new", "again", 8)


def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each base file that a look-up opens adds its path."""
    opened: list[str] = []
    real = key_lookup.BaseFileReader

    def counted(storage: Any, path: str) -> Any:
        opened.append(path)
        return real(storage, path)

    monkeypatch.setattr(key_lookup, "BaseFileReader", counted)
    return opened


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "memory"])
def test_filters_are_not_asked_further_on_a_local_disk_when_files_have_keys(
    is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(index="BLOOM", fills_small_files=False, options={"hoodie.bloom.index.use.metadata": "false"})
    table = make_table(shape, env=make_env(str(tmp_path / "table") if is_local else None))
    for number in range(8):
        table.insert(batch([row(f"{number}-a"), row(f"{number}-b")]))
    asked: list[str] = []
    real = CandidateKeys.of_file

    def counted(keys: CandidateKeys, reader: Any) -> Any:
        asked.append(reader.path)
        return real(keys, reader)

    monkeypatch.setattr(CandidateKeys, "of_file", counted)
    # Each of four tasks has two files, both with keys of the batch.
    monkeypatch.setattr(LocalEngine, "parallelism", 1)
    monkeypatch.setattr(key_lookup, "_MOST_USELESS", 1)
    table.upsert(batch([row(f"{number}-a", ts=2, v="new") for number in range(8)]))
    assert len(asked) == (4 if is_local else 8)
    assert sorted(r["id"] for r in data_rows(table) if r["v"] == "new") == [f"{number}-a" for number in range(8)]
    assert len(data_rows(table)) == 16
