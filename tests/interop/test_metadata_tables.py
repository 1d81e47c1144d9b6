"""Apache Hudi reads, writes and services tables with our metadata table, and lakehouse those with Hudi's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse.core.metadata.place import METADATA
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.metadata_files import check_listing, partitions
from tests.support.metadata_referee import MetadataReferee
from tests.support.tables import Shape, batch, make_env, make_table, row

pytestmark = pytest.mark.jvm

HUDI = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.auto.delete.partitions": "false",
}
#: Hudi compacts the metadata table with each write.
COMPACTS = {"hoodie.metadata.compact.max.delta.commits": "1"}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


def assert_referee_agrees(referee: MetadataReferee, table: Table) -> None:
    """Assert that Hudi builds the same listing and the same statistics of files from the data files.

    Statistics of partitions are wider than those that Hudi computes, so they are compared by the bounds elsewhere.
    """
    found = [text for text in referee.differences(table.location) if not _is_accepted(text)]
    assert not found, "\n".join(found)


def _is_accepted(difference: str) -> bool:
    """Hudi stores the bounds of Parquet's footer for a column of nulls: false for a boolean column."""
    is_all_null = re.search(r", (\d+), \1, False, \{'typeOrdinal': 1,", difference) is not None
    return difference.startswith("('partition_stats'") or is_all_null


@pytest.mark.parametrize("kind", TYPES)
def test_hudi_and_lakehouse_write_a_table_with_our_metadata_table_in_turn(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    table = make_table(Shape(type=kind), env=make_env(str(tmp_path / "table")))
    storage = table.refresh().env.storage
    listed = partitions(storage)
    assert listed == ("column_stats", "files", "partition_stats")
    options = HUDI | ({"hoodie.datasource.write.table.type": kind})
    table.insert(batch([row(f"k{n}", p="ab"[n % 2], amount=float(n), v=f"v{n}") for n in range(8)]))
    table.upsert(batch([row("k1", p="b", ts=2, v="ours"), row("k9", p="c", ts=2, v="ours")]))
    table.delete(["k2"])
    assert_referee_agrees(metadata_referee, table)
    assert_hudi_reads_the_same(hudi, table)

    hudi.write(table.location, batch([row("k3", p="b", ts=3, v="theirs"), row("t1", p="c", v="theirs")]), options)
    assert partitions(storage) == listed
    check_listing(storage)
    assert_hudi_reads_the_same(hudi, table)

    table.upsert(batch([row("k3", p="b", ts=4, v="ours again"), row("o1", p="d", v="ours")]))
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    hudi.write(table.location, batch([row("o1", p="d", ts=5, v="theirs")]), options | COMPACTS)
    assert [name for name in storage.list_names(f"{METADATA}/.hoodie/timeline") if name.endswith(".commit")]
    check_listing(storage)
    table.upsert(batch([row("o2", p="d", ts=5, v="ours")]))
    table.services.clustering.run(force=True)
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    check_listing(storage)
    assert_hudi_reads_the_same(hudi, table)
    assert_referee_agrees(metadata_referee, table)


@pytest.mark.parametrize("kind", TYPES)
def test_lakehouse_keeps_the_metadata_table_of_a_hudi_table(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    location, options = str(tmp_path / "table"), HUDI | {"hoodie.datasource.write.table.type": kind}
    hudi.write(location, batch([row(f"k{n}", p="ab"[n % 2], v="theirs") for n in range(6)]), options, mode="overwrite")
    hudi.write(location, batch([row("k0", p="a", ts=2, v="theirs 2")]), options)
    table = Table.open(location)
    storage = table.refresh().env.storage
    listed = partitions(storage)
    assert {"files", "column_stats", "partition_stats"} <= set(listed)
    table.upsert(batch([row("k1", p="b", ts=3, v="ours"), row("o1", p="c", ts=3, v="ours")]))
    table.rollback(table.timeline.writes().by_completion()[-1].requested)
    table.upsert(batch([row("k1", p="b", ts=3, v="ours"), row("o1", p="c", ts=3, v="ours")]))
    table.delete(["k2"])
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    assert partitions(storage) == listed
    check_listing(storage)
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(location, batch([row("o1", p="c", ts=9, v="theirs 3")]), options | COMPACTS)
    check_listing(storage)
    assert_hudi_reads_the_same(hudi, table)
    assert_referee_agrees(metadata_referee, table)
