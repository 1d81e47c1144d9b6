"""Services of the metadata table: lakehouse and Apache Hudi compact it in turn, and read it after each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.mor_tables import HUDI_OPTIONS, ORDERED, PARTITIONED
from tests.support.hudi import Hudi
from tests.support.metadata_files import check_listing, partitions, records
from tests.support.metadata_referee import MetadataReferee, content
from tests.support.tables import Shape, batch, data_rows, row

pytestmark = pytest.mark.jvm

COMPACTED = {"hoodie.metadata.enable": "true", "hoodie.metadata.compact.max.delta.commits": "4"}
#: Hudi's defaults would drop index partitions that its own options do not request.
THEIRS = {
    **HUDI_OPTIONS,
    **ORDERED,
    **PARTITIONED,
    "hoodie.table.name": "events",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.auto.delete.partitions": "false",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": "3",
}


def done(table: Table) -> Counter[Action]:
    """Return the number of completed instants of the metadata table by action."""
    names = table.refresh().env.storage.list_names(f"{METADATA}/.hoodie/timeline")
    found = [parse_instant(name) for name in names]
    return Counter(instant.action for instant in found if instant is not None and instant.is_completed)


def write(table: Table, number: int) -> None:
    table.upsert(batch([row(f"k{number}", p="abc"[number % 3], ts=number), row("k0", p="a", ts=number)]))


def assert_same_records(table: Table, referee: MetadataReferee) -> None:
    """Compare the merged records with those that Hudi's reader of metadata tables returns."""
    storage = table.refresh().env.storage
    check_listing(storage)
    ours = {
        (name, key): content(record) for name in partitions(storage) for key, record in records(storage, name).items()
    }
    theirs = referee.records(table.location)
    assert ours.keys() == theirs.keys()
    assert {place: value for place, value in ours.items() if value != theirs[place]} == {}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("logs", [False, True], ids=["compaction", "log compaction"])
def test_hudi_reads_and_compacts_a_metadata_table_that_lakehouse_compacted(
    kind: str, logs: bool, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    table = make_local(kind, tmp_path)
    if logs:
        table = table.with_options(
            {
                "hoodie.metadata.compact.max.delta.commits": "50",
                "hoodie.metadata.log.compaction.enable": "true",
                "hoodie.metadata.log.compaction.blocks.threshold": "3",
            }
        )
    for number in range(11):
        write(table, number)
    assert (done(table)[Action.COMMIT] == 0) is logs
    assert_same_records(table, metadata_referee)
    assert_hudi_reads_the_same(hudi, table)
    before = done(table)
    options = {**THEIRS, "hoodie.datasource.write.table.type": kind}
    for number in range(4):
        hudi.write(table.location, batch([row(f"k{number}", p="abc"[number % 3], ts=50 + number, v="theirs")]), options)
    assert done(table)[Action.COMMIT] > before[Action.COMMIT]
    assert metadata_of(table.refresh()) is not None
    check_listing(table.refresh().env.storage)
    for number in range(60, 66):
        write(table, number)
        check_listing(table.refresh().env.storage)
    assert {r["v"] for r in data_rows(table, ["id", "v"]) if r["id"] in ("k1", "k2", "k3")} == {"theirs"}
    assert_same_records(table, metadata_referee)
    assert_hudi_reads_the_same(hudi, table)


def make_local(kind: str, directory: Path) -> Table:
    shape = Shape(type=kind, options=COMPACTED)
    return Table.create(
        str(directory / "table"),
        name="events",
        record_key=["id"],
        partition_by=["p"],
        table_type=kind,
        ordering="ts",
        options=shape.table_options(),
    )
