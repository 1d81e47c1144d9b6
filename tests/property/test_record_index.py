"""After any history the record index has exactly the keys of the table, each with its file group (MDT-4)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.table.table import Table
from tests.support.merged_run import MergedRun, merged_histories, merged_shapes
from tests.support.model import Run, Shape, Verb, histories, shapes
from tests.support.tables import Shape as TableShape
from tests.support.tables import batch, data_rows, examples, make_table, row

GLOBAL = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.global.record.level.index.max.filegroup.count": "2",
    "hoodie.metadata.index.bloom.filter.enable": "true",
}
PARTITIONED = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.record.level.index.enable": "true",
    "hoodie.metadata.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.record.level.index.max.filegroup.count": "2",
}
#: Keys are unique in the table with the first indexes, and in each partition with the others.
KINDS = [
    *((index, GLOBAL) for index in ("RECORD_INDEX", "GLOBAL_SIMPLE", "GLOBAL_BLOOM")),
    *((index, PARTITIONED) for index in ("RECORD_LEVEL_INDEX", "SIMPLE", "BLOOM")),
]
Location = tuple[str, str, str]
each_kind = pytest.mark.parametrize(("index", "options"), KINDS, ids=[index for index, _ in KINDS])


def stored_locations(table: Table) -> list[Location]:
    """Return key, partition path and file group of each row, sorted."""
    names = ["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]
    found = table.scan(names).to_arrow()
    columns = [found.column(name).cast(pa.string()).to_pylist() for name in names]
    return sorted((key, path, name.partition("_")[0]) for key, path, name in zip(*columns, strict=True))


def indexed_locations(table: Table) -> list[Location]:
    """Return the same from the record index, sorted; checks that it is usable."""
    metadata = metadata_of(Table.open(table.location, env=table._env)._loaded)
    assert metadata is not None and "record_index" in metadata.usable
    rows = metadata.records("record_index").to_pylist()
    found = sorted((row["key"], row["partition"], row["file_id"]) for row in rows)
    # The second look-up in a file decodes it, and the third one uses the decoded locations.
    keys = pa.array(sorted({key for key, _, _ in found} | {"", "missing"}), pa.string())
    for _ in range(3):
        assert sorted((r["key"], r["partition"], r["file_id"]) for r in metadata.locations(keys).to_pylist()) == found
    return found


def test_look_up_finds_keys_that_the_same_process_wrote() -> None:
    table = make_table(TableShape(index="RECORD_INDEX", options=GLOBAL))
    for number in range(4):
        table.upsert(batch([row(f"k{number}-{n}") for n in range(20)]))
        metadata = metadata_of(table._loaded.refresh())
        assert metadata is not None
        keys = pa.array([f"k{m}-{n}" for m in range(number + 1) for n in range(20)])
        assert sorted(metadata.locations(keys).column("key").to_pylist()) == sorted(keys.to_pylist())
    table.upsert(batch([row(f"k{number}-{n}", ts=2, v="new") for number in range(4) for n in range(20)]))
    assert [found["v"] for found in data_rows(table)] == ["new"] * 80


@each_kind
@examples(8)
@given(data=st.data())
def test_record_index_of_a_copy_on_write_table_has_its_keys(
    index: str, options: dict[str, str], data: st.DataObject
) -> None:
    shape: Shape = data.draw(shapes(index=index, options=options, combines_inserts=True))
    run = Run(make_table(shape), shape)
    history: list[Verb] = data.draw(histories())
    for verb in history:
        run.step(verb)
        assert indexed_locations(run.table) == stored_locations(run.table), verb.name


@each_kind
@examples(8)
@given(data=st.data())
def test_record_index_of_a_merge_on_read_table_has_its_keys(
    index: str, options: dict[str, str], data: st.DataObject
) -> None:
    shape: Shape = data.draw(merged_shapes(index=index, options=options, combines_inserts=True))
    run = MergedRun(make_table(shape), shape)
    history: list[Verb] = data.draw(merged_histories())
    for verb in history:
        run.step(verb)
        assert indexed_locations(run.table) == stored_locations(run.table), verb.name
    run.finish()
