"""Skeleton files of bootstrapped tables are joined with their source files by the position of rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse import CorruptTableError, Table
from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.skeleton_file import aligned, source_of
from lakehouse.core.format.avro.schema import META_COLUMNS
from tests.support.parquet_folders import orders, regions, write_folders

KEY = META_COLUMNS[2]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    source = regions(tmp_path / "source")
    return Table.bootstrap(tmp_path / "table", source=source, name="orders", record_key="id", ordering="ts")


def _skeletons(table: Table) -> list[str]:
    names = table.scan(columns=[META_COLUMNS[3], META_COLUMNS[4]]).to_arrow()
    pairs = names.group_by(META_COLUMNS[3:5]).aggregate([]).sort_by(META_COLUMNS[4]).to_pylist()
    return [f"{pair[META_COLUMNS[3]]}/{pair[META_COLUMNS[4]]}" for pair in pairs]


def test_skeleton_file_has_only_meta_columns(table: Table) -> None:
    paths = _skeletons(table)
    assert len(paths) == 3
    for path in paths:
        assert pq.read_schema(Path(table.location) / path).names == list(META_COLUMNS)


def test_row_groups_of_source_get_the_keys_of_their_rows(table: Table) -> None:
    for path in _skeletons(table):
        reader = BaseFileReader(table.loaded.env.storage, path)
        assert reader.is_skeleton
        groups = reader.statistics.num_row_groups
        assert groups > 3
        schema = pa.schema([(KEY, pa.string()), ("id", pa.string()), ("region", pa.string())])
        for chosen in ([0], [2, 1], [groups - 1], list(range(groups))):
            rows = pa.concat_tables(reader.batches(schema, 5, chosen))
            assert rows.num_rows == sum(reader.statistics.row_group(number).num_rows for number in chosen)
            assert rows.column(KEY).to_pylist() == rows.column("id").to_pylist()
            assert set(rows.column("region").to_pylist()) == {path.split("=")[1].split("/")[0]}
        reader.close()


def test_missing_source_file_is_named(table: Table, tmp_path: Path) -> None:
    (tmp_path / "source/region=south/a.parquet").unlink()
    with pytest.raises(CorruptTableError, match=r"region=south/a\.parquet, which does not exist"):
        table.scan().to_arrow()


def test_changed_source_file_is_refused(table: Table, tmp_path: Path) -> None:
    write_folders(tmp_path / "source", {"region=south/a.parquet": orders(60, 90)})
    with pytest.raises(CorruptTableError, match="at the bootstrap it had 40 rows"):
        table.scan().to_arrow()


def test_missing_index_is_named(table: Table, tmp_path: Path) -> None:
    (index,) = (tmp_path / "table/.hoodie/.aux/.bootstrap/.fileids").glob("*.hfile")
    index.unlink()
    with pytest.raises(CorruptTableError, match=r"\.fileids/.*Restore it from a backup"):
        Table.open(table.location).scan().to_arrow()


def test_source_of_unknown_file_id_is_an_error(table: Table) -> None:
    with pytest.raises(CorruptTableError, match="no entry for the file id other"):
        source_of(table.loaded.env.storage, "region=south", "other")


@given(st.integers(0, 60), st.lists(st.integers(1, 9), max_size=20), st.lists(st.integers(1, 9), max_size=20))
def test_aligned_batches_contain_every_row_once(rows: int, first: list[int], second: list[int]) -> None:
    def batches(name: str, sizes: list[int]) -> list[pa.RecordBatch]:
        whole = pa.record_batch({name: pa.array(range(rows), pa.int64())})
        cuts = [0]
        for size in sizes:
            cuts.append(min(cuts[-1] + size, rows))
        cuts.append(rows)
        return [whole.slice(start, stop - start) for start, stop in pairwise(cuts)]

    pairs = list(aligned([iter(batches("a", first)), iter(batches("b", second))]))
    joined = [(value, other) for a, b in pairs for value, other in zip(a.column(0), b.column(0), strict=True)]
    assert [(value.as_py(), other.as_py()) for value, other in joined] == [(number, number) for number in range(rows)]


def test_aligned_refuses_inputs_of_different_lengths() -> None:
    short, long = (pa.record_batch({"a": pa.array(range(size))}) for size in (3, 5))
    with pytest.raises(CorruptTableError, match="different numbers of rows"):
        list(aligned([iter([short]), iter([long])]))
