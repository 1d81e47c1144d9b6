"""Writes that take the file groups of their keys from stored locations give the rows of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement import by_location
from lakehouse.core.table.table import Table
from lakehouse.spec.options.policies import Policies
from tests.support.merged_run import MergedRun, merged_histories, merged_shapes
from tests.support.model import Run, Shape, Verb, histories, shapes
from tests.support.tables import examples, make_table

LOCATED = ("RECORD_INDEX", "RECORD_LEVEL_INDEX")


class ScannedLocations:
    """The locations of all stored keys, found by a scan."""

    def __init__(self, table: LoadedTable, *, by_partition: bool) -> None:
        names = ["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]
        found = Table(table.env, Policies(), table).scan(names).to_arrow()
        keys, paths, files = (found.column(name).cast(pa.string()) for name in names)
        # The file name of a row in a log is the id of its file group.
        ids = pa.chunked_array([[name.partition("_")[0] for name in files.to_pylist()]], pa.string())
        self.by_partition = by_partition
        self.table = pa.table({"key": keys, "partition": paths, "file_id": ids})

    def locations(self, keys: pa.Array, partitions: Sequence[str] | None = None) -> pa.Table:
        """Return the locations of keys; each key once."""
        assert (partitions is not None) == self.by_partition
        found = self.table.filter(pc.is_in(self.table.column("key"), value_set=keys))
        if partitions is not None:
            found = found.filter(pc.is_in(found.column("partition"), value_set=pa.array(partitions, pa.string())))
        return found.append_column("instant_ms", pa.nulls(found.num_rows, pa.int64()))


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give each write the locations of all keys; collects the roots of tables whose locations were asked for."""
    asked: list[str] = []

    def scanned(table: LoadedTable, find: Callable[[ScannedLocations], Any], *, by_partition: bool) -> Any:
        asked.append(table.env.storage.root)
        return find(ScannedLocations(table, by_partition=by_partition))

    monkeypatch.setattr(by_location, "with_record_locations", scanned)
    yield asked


@pytest.mark.parametrize("index", LOCATED)
@examples(12)
@given(data=st.data())
def test_copy_on_write_table_with_stored_locations_equals_the_model(index: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes(index=index))
    run = Run(make_table(shape), shape)
    history: list[Verb] = data.draw(histories())
    for verb in history:
        run.step(verb)
    run.compare_incremental(run.commits)


@pytest.mark.parametrize("index", LOCATED)
@examples(12)
@given(data=st.data())
def test_merge_on_read_table_with_stored_locations_equals_the_model(index: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(merged_shapes(index=index))
    run = MergedRun(make_table(shape), shape)
    history: list[Verb] = data.draw(merged_histories())
    for verb in history:
        run.step(verb)
    run.finish()
