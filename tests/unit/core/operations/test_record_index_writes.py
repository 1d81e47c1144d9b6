"""Writes by the record index: which files they read, what they refuse, and builds of the index (MDT-4.5)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.files.keys import key_lookup
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement import by_location
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from tests.property.test_record_index import GLOBAL, PARTITIONED, indexed_locations, stored_locations
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


def table_of(**shape: object) -> Table:
    """Return an empty table with a record index."""
    options = {**GLOBAL, **shape.pop("options", {})}  # type: ignore[dict-item]
    return make_table(Shape(index="RECORD_INDEX", options=options, **shape))  # type: ignore[arg-type]


@pytest.mark.parametrize("type", TYPES)
def test_upsert_updates_and_inserts_into_the_same_small_file(type: str) -> None:
    table = table_of(type=type, rows_per_file=100, moves=False)
    table.bulk_insert(batch(row(f"k{number}") for number in range(40)))
    table.upsert(batch(row(f"k{number}", ts=2, v="new") for number in range(35, 45)))
    assert [found["id"] for found in data_rows(table, ["id"])] == sorted(
        (f"k{number}" for number in range(45)), key=lambda id: repr({"id": id})
    )
    assert indexed_locations(table) == stored_locations(table)


def test_upsert_reads_the_key_columns_only_of_the_located_files(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    stored_keys = key_lookup.stored_keys

    def recorded(context, reader):  # type: ignore[no-untyped-def]
        read.append(reader.path)
        return stored_keys(context, reader)

    table = table_of(rows_per_file=4, fills_small_files=False)
    table.bulk_insert(batch(row(f"k{number}") for number in range(40)))
    monkeypatch.setattr(key_lookup, "stored_keys", recorded)
    outcome = table.upsert(batch([row("k7", ts=2), row("k99")]))
    assert isinstance(outcome, Committed)
    (updated,) = [stat for stat in outcome.metadata.stats if stat.num_updates]
    assert [updated.file_id in path for path in read] == [True]


def test_merge_on_read_upsert_reads_no_key_column_of_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(type="MERGE_ON_READ", rows_per_file=4, fills_small_files=False, moves=False)
    table.bulk_insert(batch(row(f"k{number}") for number in range(40)))

    def refused(*_: object) -> None:
        raise AssertionError("a key column was read")

    monkeypatch.setattr(key_lookup, "stored_keys", refused)
    table.upsert(batch([row("k7", ts=2, v="new"), row("k99")]))
    monkeypatch.undo()
    assert data_rows(table, ["id"], where="v = 'new'") == [{"id": "k7"}]
    assert len(data_rows(table)) == 41


@pytest.mark.parametrize("type", TYPES)
def test_large_batch_reads_the_keys_of_all_files_on_a_local_disk(
    type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(index="RECORD_INDEX", type=type, rows_per_file=8, fills_small_files=False, options=GLOBAL)
    table = make_table(shape, env=make_env(str(tmp_path / "table")))
    table.bulk_insert(batch(row(f"k{number:02d}", p="ab"[number % 2]) for number in range(40)))
    monkeypatch.setattr(by_location, "_FEW_KEYS", 4)
    monkeypatch.setattr(by_location, "_KEYS_READ_FOR_ONE", 5)
    searched: list[int] = []
    located = by_location.search_locations

    def recorded(placement, write, runs):  # type: ignore[no-untyped-def]
        searched.append(sum(run.rows for run in runs))
        return located(placement, write, runs)

    monkeypatch.setattr(by_location, "search_locations", recorded)
    monkeypatch.setattr(by_location, "_rows_of", lambda table, slices: 40.0)
    table.upsert(batch(row(f"k{number:02d}", p="ab"[number % 2], ts=2, v="new") for number in range(4)))
    assert searched == [4]
    changed = [row(f"k{number:02d}", p="ab"[number % 2], ts=3, v="all") for number in range(45)]
    table.upsert(batch(changed))
    # Logs would have to be merged, which costs more than the index.
    assert searched == ([4] if type == "COPY_ON_WRITE" else [4, 45])
    assert {found["v"] for found in data_rows(table, ["id", "v"])} == {"all"}
    assert len(data_rows(table)) == 45
    assert indexed_locations(table) == stored_locations(table)


def test_commit_that_inserts_a_key_twice_is_refused_and_leaves_nothing() -> None:
    table = table_of()
    table.upsert(batch([row("k1")]))
    with pytest.raises(UserError, match=r"record key 'k2' is in file group .* and in file group"):
        table.insert(batch([row("k2", p="a"), row("k2", p="b")]))
    assert data_rows(table, ["id"]) == [{"id": "k1"}]
    assert indexed_locations(table) == stored_locations(table)
    table.upsert(batch([row("k2")]))
    assert indexed_locations(table) == stored_locations(table)


def test_merge_on_read_table_with_a_bucket_index_is_refused() -> None:
    with pytest.raises(UserError, match="the bucket index appends inserts to log files"):
        make_table(Shape(index="BUCKET", type="MERGE_ON_READ", options=GLOBAL))


def test_partition_path_with_a_dot_is_refused_by_a_partitioned_record_index() -> None:
    table = make_table(Shape(index="RECORD_LEVEL_INDEX", options=PARTITIONED))
    table.upsert(batch([row("k1", p="a")]))
    with pytest.raises(UnsupportedError, match=r"partition '.*1\.5' cannot be in a partitioned record index"):
        table.upsert(batch([row("k2", p="1.5")]))
    assert indexed_locations(table) == stored_locations(table)


def test_upsert_without_a_record_index_searches_the_files_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    table = make_table(Shape(index="RECORD_INDEX"))
    table.upsert(batch([row("k1", p="a"), row("k2", p="b")]))
    caplog.clear()
    table.upsert(batch([row("k1", p="b", ts=2, v="new")]))
    assert (
        "RECORD_INDEX has no record index to use; the keys are searched in the files, as GLOBAL_SIMPLE" in caplog.text
    )
    assert data_rows(table, ["id"]) == [{"id": "k1"}, {"id": "k2"}]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("options", [GLOBAL, PARTITIONED], ids=["global", "partitioned"])
def test_index_that_is_built_for_a_table_with_rows_has_its_keys(
    type: str, options: dict[str, str], tmp_path: Path
) -> None:
    table = make_table(Shape(type=type, rows_per_file=5))
    table.upsert(batch(row(f"k{number}", p="ab"[number % 2]) for number in range(30)))
    table.upsert(batch(row(f"k{number}", p="ab"[number % 2], ts=2) for number in range(10, 35)))
    table.delete(["k3", "k12"])
    declared = table.with_options(options)
    outcome = declared.services.index.run(force=True)
    assert "record_index" in getattr(outcome, "partitions", ()), outcome
    assert indexed_locations(table) == stored_locations(table)
    again = Table.open(table.location, env=table._env)
    again.upsert(batch([row("k0", p="a", ts=3), row("k50", p="b")]))
    assert indexed_locations(table) == stored_locations(table)


def test_bloom_filters_have_a_record_for_each_base_file_until_it_is_cleaned() -> None:
    table = table_of(rows_per_file=4)
    for ts in range(1, 5):
        table.upsert(batch(row(f"k{number}", ts=ts) for number in range(8)))
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    metadata = metadata_of(Table.open(table.location, env=table._env)._loaded)
    assert metadata is not None
    listed = metadata.listing()
    bases = listed.filter(pa.compute.ends_with(listed.column("name"), ".parquet"))
    assert sorted(metadata.bloom_filters(bases).column("name").to_pylist()) == sorted(bases.column("name").to_pylist())
    assert metadata.records("bloom_filters").num_rows == bases.num_rows


def test_rows_of_small_files_are_estimated_by_the_largest_file(tmp_path: Path) -> None:
    table = make_table(Shape(rows_per_file=200, fills_small_files=False), env=make_env(str(tmp_path / "table")))
    assert by_location._rows_of(table.refresh(), load_slices(table.refresh())) == 0
    for start in range(0, 1000, 200):
        table.bulk_insert(batch(row(f"k{number}", p="ab"[number % 2]) for number in range(start, start + 200)))
    loaded = table.refresh()
    slices = load_slices(loaded)
    assert len(slices) == 10
    assert 800 <= by_location._rows_of(loaded, slices) <= 1200
