"""hudi-rs reads tables of lakehouse like lakehouse does: the latest snapshot, each instant and each range."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from tests.support import hudi_rs
from tests.support.fixture_tables import FixtureTable, canonical_rows, load_fixture_tables
from tests.support.model import Model, apply_verb, histories, shapes
from tests.support.tables import KEYS, Shape, batch, examples, make_env, make_table, row

# hudi-rs treats `p:SIMPLE` as a column name, so it cannot read tables with the custom key generator.
READABLE_KEYS = sorted(set(KEYS) - {"custom"})
WRITABLE = {
    table.name: table
    for table in load_fixture_tables()
    if table.is_supported
    and table.version >= 8
    and table.has_meta_fields
    and table.entry["snapshot"]["rows"]
    # Tables with log files are compared with Apache Hudi, because hudi-rs reads some of them differently.
    and table.entry["table_type"] == "COPY_ON_WRITE"
}
CLUSTERING = "cow_v9_state_clustering_inflight"


def assert_same(ours: pa.Table, theirs: pa.Table) -> None:
    wanted = canonical_rows(ours, with_meta=True)
    assert canonical_rows(hudi_rs.like(theirs, ours.schema), with_meta=True) == wanted


def assert_same_reads(table: Table) -> None:
    """Compare the latest snapshot, the snapshot of each instant and the changes of each range."""
    commits = [instant for instant, _ in table.commits()]
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    for instant in commits:
        past = table.scan(as_of=instant.requested).to_arrow()
        assert_same(past, hudi_rs.read_as_of(table.location, instant.requested))
    for start, end in combinations([instant.completion for instant in commits], 2):
        changed = table.incremental(start, end).to_arrow()
        assert_same(changed, hudi_rs.read_incremental(table.location, start, end))


def distinct_keys(table: Table) -> pa.Table:
    """Return the rows whose key occurs once in the table."""
    rows = table.scan().to_arrow()
    keys = rows.column("_hoodie_record_key")
    counts = keys.value_counts()
    once = pc.struct_field(counts, 0).filter(pc.equal(pc.struct_field(counts, 1), 1))
    return rows.filter(pc.is_in(keys, once))


def later(rows: pa.Table, ordering: str) -> pa.Table:
    """Return the rows with their ordering value increased by one."""
    position, field = rows.schema.get_field_index(ordering), rows.schema.field(ordering)
    return rows.set_column(position, field, pc.add(rows.column(ordering), pa.scalar(1, field.type)))


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("keys", READABLE_KEYS)
def test_hudi_rs_reads_random_histories_like_lakehouse(keys: str, version: int, tmp_path: Path) -> None:
    @examples(3)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        shape = data.draw(shapes(keys=keys, version=version))
        history = data.draw(histories(5))
        shutil.rmtree(tmp_path / "table", ignore_errors=True)
        table, model = make_table(shape, env=make_env(str(tmp_path / "table"))), Model(shape)
        for verb in history:
            apply_verb(table, model, verb, unique=False)
        assert_same_reads(table)

    check()


def test_hudi_rs_rejects_the_custom_key_generator(tmp_path: Path) -> None:
    table = make_table(Shape(keys="custom"), env=make_env(str(tmp_path / "table")))
    table.upsert(batch([row("1")]))
    with pytest.raises(Exception, match=r"Partition field .* is not present in the table schema"):
        hudi_rs.read(table.location)


@pytest.mark.parametrize("name", [name for name in WRITABLE if name != CLUSTERING])
def test_hudi_rs_reads_hudi_tables_after_writes_of_lakehouse(name: str, tmp_path: Path) -> None:
    table = Table.open(str(WRITABLE[name].unpack(tmp_path)))
    ordering, known = table.config.ordering_fields[0], len(table.commits())
    indexes = table.config.metadata_partitions
    stored = distinct_keys(table)
    updated, deleted = later(stored.slice(0, 2), ordering), stored.column("_hoodie_record_key")[-1].as_py()
    table.upsert(updated)
    table.delete([deleted])
    assert len(table.commits()) == known + 2
    after = table.scan(["_hoodie_record_key", ordering]).to_arrow()
    newest = dict(zip(*(column.to_pylist() for column in after.columns), strict=True))
    written = (updated.column(name).to_pylist() for name in ("_hoodie_record_key", ordering))
    assert dict(zip(*written, strict=True)).items() <= newest.items()
    assert deleted not in newest and len(after) == WRITABLE[name].entry["snapshot"]["rows"] - 1
    assert table.refresh().config.metadata_partitions == indexes
    assert_same_reads(table)


def test_upsert_fails_for_rows_of_a_pending_clustering(tmp_path: Path) -> None:
    fixture: FixtureTable = WRITABLE[CLUSTERING]
    table = Table.open(str(fixture.unpack(tmp_path)))
    before = table.scan().to_arrow()
    with pytest.raises(RetryableError, match=fixture.entry["pending"][0]["instant"]):
        table.upsert(later(before, table.config.ordering_fields[0]))
    assert_same(before, hudi_rs.read(table.location))
