"""Tables of version 6 that Hudi wrote: after every verb and service of lakehouse all readers return the same rows.

Apache Hudi 0.15, Hudi 1.2 and hudi-rs read the tables, and both releases of Hudi continue the archive.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.table.table import Table
from lakehouse.model.restore import Savepoint
from tests.interop.test_cdc import assert_changes_fold, ours, theirs
from tests.interop.test_version_6_tables import OF_0_15, OF_1_2, read_by_all
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.hudi_0_15 import BUCKET, KINDS, TYPE, fixture_tables, unpacked
from tests.support.version_6 import SCHEMA, V6, batch

pytestmark = pytest.mark.jvm

SHORT = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.metadata.enable": "false",
}


class Serviced:
    """A table of a fixture, its rows without meta columns, and the options of all calls."""

    def __init__(self, name: str, directory: Path) -> None:
        self.location = unpacked(name, directory)
        schema = Table.open(self.location).scan().to_arrow().schema
        flat = [f.name for f in schema if f.name not in META_COLUMNS and not pa.types.is_nested(f.type)]
        self.options = {
            **SHORT,
            "hoodie.clustering.plan.strategy.sort.columns": "v" if "v" in flat else flat[-1],
            **(BUCKET if "bucket" in name else {}),
        }
        if self.table.config.metadata_partitions:
            self.table.metadata.rebuild()
        self.rows = self.data()
        self.first = self.rows.slice(0, 1)

    @property
    def table(self) -> Table:
        return Table.open(self.location, options=self.options)

    def data(self) -> pa.Table:
        read = self.table.scan().to_arrow()
        return read.drop_columns([name for name in read.column_names if name in META_COLUMNS])

    def check(self, outcome: object, kind: type = Committed) -> None:
        """Check the outcome of an operation that keeps the rows, and the table."""
        assert isinstance(outcome, kind)
        assert canonical_rows(self.data()) == canonical_rows(self.rows)
        assert self.table.validate(deep=True).corrupt == ()

    def write(self) -> None:
        """Run each verb that writes, and undo one write and all writes since a savepoint."""
        self.check(self.table.upsert(self.rows))
        if self.table.config.is_merge_on_read:
            self.check(self.table.services.compaction.run(force=True))
        savepoint = self.table.savepoint()
        assert isinstance(savepoint, Savepoint)
        assert isinstance(self.table.delete(self.first), Committed)
        assert self.data().num_rows == self.rows.num_rows - 1
        self.check(self.table.insert(self.first))
        assert isinstance(self.table.bulk_insert(self.first), Committed)
        self.table.rollback(self.table.timeline.writes().by_completion()[-1].requested)
        self.check(self.table.upsert(self.first))
        assert isinstance(self.table.delete(self.rows), Committed)
        assert self.data().num_rows == 0
        self.table.restore(savepoint.requested)
        self.table.delete_savepoint(savepoint.requested)
        self.check(self.table.upsert(self.first))

    def serve(self) -> None:
        """Run each service between writes of all kinds."""
        self.check(self.table.services.clustering.run(force=True))
        self.check(self.table.insert_overwrite(self.rows))
        self.check(self.table.upsert(self.rows))
        if self.table.config.is_merge_on_read:
            self.check(self.table.services.compaction.run(force=True))
        self.check(self.table.services.clean.run(force=True), Cleaned)
        self.check(self.table.services.archive.run(force=True), Archived)
        self.check(self.table.upsert(self.rows))


@pytest.mark.parametrize("name", fixture_tables())
def test_all_readers_agree_after_each_verb_and_service(name: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path) -> None:
    fixture = Serviced(name, tmp_path)
    fixture.write()
    read_by_all(fixture.location, hudi, hudi_0_15)
    fixture.serve()
    read_by_all(fixture.location, hudi, hudi_0_15)
    fixture.check(fixture.table.insert_overwrite_table(fixture.rows))
    fixture.check(fixture.table.upsert(fixture.first))
    read_by_all(fixture.location, hudi, hudi_0_15)


def archived_by(hudi: Hudi, location: str) -> set[str]:
    """Return the requested times of the commits that Hudi reads from the archive."""
    text = (
        "CALL show_archived_commits(table => '{table}', limit => 100, start_ts => '20200101000000', "
        "end_ts => '20990101000000')"
    )
    return set(hudi.query(text, table=location).column("commit_time").to_pylist())


def archived_writes(table: Table) -> set[str]:
    return {instant.requested for instant in table.archived().writes()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["0.15", "1.2"])
def test_hudi_and_lakehouse_continue_the_archive_of_each_other(
    kind: str, by: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location, name="t", record_key="id", partition_by="p", ordering="ts", table_type=kind, options=V6 | SHORT
    )
    for number in range(1, 7):
        assert isinstance(table.upsert(batch(["a1", f"b{number}"], number, f"{number}")), Committed)
    written = {instant.requested for instant in table.timeline.writes()}
    table.services.clean.run(force=True)
    assert isinstance(table.services.archive.run(force=True), Archived)
    own = archived_writes(table)
    assert own and own < written
    writer, options = (hudi_0_15, OF_0_15) if by == "0.15" else (hudi, OF_1_2)
    assert archived_by(writer, location) == own
    keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.cleaner.commits.retained": "1"}
    for number in range(7, 12):
        writer.write(location, batch(["a1", f"b{number}"], number, by), options | keep | {TYPE: kind})
    table = Table.open(location, options=SHORT)
    both = archived_writes(table)
    assert both > own and len(list(Path(location, ".hoodie/archived").iterdir())) > 1
    every = both | {instant.requested for instant in table.timeline.writes()}
    # Hudi may have run a compaction, too.
    assert len(every) in (11, 12) and written < every
    for number in range(12, 16):
        assert isinstance(table.upsert(batch([f"b{number}"], number, "ours")), Committed)
    table.services.clean.run(force=True)
    assert isinstance(table.services.archive.run(force=True), Archived)
    assert archived_by(writer, location) == archived_writes(table) > both
    rows = read_by_all(location, hudi, hudi_0_15)
    assert len(rows) == 16 and rows["a1"] == by
    assert table.validate(deep=True).findings == ()


def changed(v: str, ts: int, *ids: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "p": "x", "ts": ts, "v": v} for i in ids], schema=SCHEMA)


def test_changes_that_hudi_and_lakehouse_wrote_are_read_by_both(hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path) -> None:
    table = Table.open(unpacked("cow_v6_h015_cdc", tmp_path))
    assert theirs(hudi_0_15, table) == ours(table)
    table.upsert(changed("ours", 5, "a", "d"))
    table.delete(changed("", 5, "b").select(["id", "p"]))
    named = OF_0_15 | {"hoodie.table.name": table.config.name, "hoodie.table.cdc.enabled": "true"}
    hudi_0_15.write(table.location, changed("0.15", 6, "c", "e"), named)
    assert theirs(hudi_0_15, table) == ours(table) == theirs(hudi, table)
    over = table.insert_overwrite(changed("over", 7, "a", "f"))
    assert isinstance(over, Committed)
    table.upsert(changed("last", 8, "f"))
    found = ours(table)
    assert sum(found.values()) == 16
    assert theirs(hudi, table) == found
    # Of the rows of a replaced file group, Hudi 0.15 returns the same one several times.
    assert theirs(hudi_0_15, table, over.instant.requested) == ours(table, over.instant.requested)
    assert sum(theirs(hudi_0_15, table).values()) == 16
    assert_changes_fold(table)
