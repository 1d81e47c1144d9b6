"""Merge-on-read tables of lakehouse and Hudi, and a history of writes that creates every kind of log block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.log.blocks import LogBlock, scan_blocks
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.model.merge import MergeMode
from tests.interop.agreement import assert_same
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, SCHEMA, batch, row

Row = dict[str, Any]
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
BUCKETS_BEGIN_IN_LOGS = BUCKETS | {"lakehouse.bucket.inserts": "log"}
VERSION_8 = {"hoodie.write.table.version": "8"}
PARTIAL = {"lakehouse.write.partial.update": "true"}
#: Hudi cannot read partial blocks of a table with the delete flag, so these tables do not have the column.
WITHOUT_FLAG = pa.schema([field for field in SCHEMA if field.name != DELETED])

#: Options of Hudi's writer. Clean is off because it would delete the versions that time travel reads. The metadata
#: table is off because it takes long to build.
HUDI_OPTIONS = {
    "hoodie.table.name": "theirs",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.metadata.enable": "false",
}
ORDERED = {"hoodie.datasource.write.precombine.field": "ts"}
PARTITIONED = {"hoodie.datasource.write.partitionpath.field": "p"}
PARQUET_LOGS = {"hoodie.logfile.data.block.format": "parquet"}
#: Prevents that inserts rewrite small base files, because a rewritten base file loses the deletes of its keys.
NO_SMALL_FILES = {"hoodie.parquet.small.file.limit": "0"}
STAYS_AT_8 = VERSION_8 | {"hoodie.write.auto.upgrade": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of merge-on-read table; `event` selects event-time ordering instead of commit-time ordering."""

    event: bool = True
    partitioned: bool = True
    options: Mapping[str, str] = field(default_factory=dict)


KINDS = {
    "event": Kind(),
    "commit-8": Kind(event=False, options=VERSION_8),
    "flat": Kind(partitioned=False),
    "bucket": Kind(options=BUCKETS),
    "bucket-in-logs-8": Kind(options=BUCKETS_BEGIN_IN_LOGS | VERSION_8),
}


def create(kind: Kind, directory: Path, *, schema: pa.Schema = SCHEMA) -> Table:
    """Create an empty table whose log compaction is due from two log files on."""
    return Table.create(
        str(directory / "table"),
        name="logged",
        record_key=["id"],
        partition_by=["p"] if kind.partitioned else [],
        ordering="ts",
        schema=schema,
        merge_mode=MergeMode.EVENT_TIME_ORDERING if kind.event else MergeMode.COMMIT_TIME_ORDERING,
        table_type="MERGE_ON_READ",
        options={"hoodie.log.compaction.blocks.threshold": "2", **kind.options},
    )


def inserted() -> list[Row]:
    """Return twelve rows in three partitions, all with the ordering value 5."""
    return [row(f"k{i}", p="abc"[i % 3], ts=5, v="first") for i in range(12)]


def history_steps(table: Table) -> Iterator[str]:
    """Run every kind of write, delete and compaction; yield the description of each step after it."""
    first = inserted()
    table.upsert(batch(first))
    yield "inserts"
    table.upsert(batch([first[0] | {"ts": 6, "v": "later"}, first[1] | {"ts": 4, "v": "late"}, row("n1", p="a")]))
    yield "updates, one of them late"
    gone = [first[2] | {"ts": 9}, first[3] | {"ts": 1}, first[4] | {"ts": None}]
    table.upsert(batch([r | {DELETED: True} for r in gone]))
    yield "deletes by flag: later, late, without ordering value"
    assert isinstance(table.delete(batch([first[5], first[6]]).select(["id", "p"])), Committed)
    yield "deletes by key, alone in their logs"
    table.upsert(batch([first[5] | {"ts": 2, "v": "back"}, first[2] | {"ts": 8, "v": "too late"}]))
    yield "rows that come back"
    table.services.compaction.schedule(force=True)
    yield "a plan"
    table.upsert(batch([first[7] | {"ts": 7, "v": "meanwhile"}, first[8] | {"ts": 7, DELETED: True}]))
    yield "updates while the plan waits"
    assert isinstance(table.services.compaction.run(), Committed)
    yield "a compaction"
    table.upsert(batch([first[7] | {"ts": 6, "v": "late again"}, first[9] | {"ts": 8, "v": "after"}]))
    yield "updates after the compaction"
    table.upsert(batch([r | {"ts": 10, "v": "again"} for r in (first[0], first[9], first[10])]))
    yield "more updates"
    assert isinstance(table.services.log_compaction.run(), Committed)
    yield "a log compaction"
    table.upsert(batch([first[9] | {"ts": 11, "v": "last"}, first[11] | {"ts": 11, DELETED: True}, row("n2", p="b")]))
    yield "updates after the log compaction"


def write_partial_updates(table: Table) -> None:
    """Run partial updates of stored and new rows, with higher and lower ordering values, mixed with full upserts."""
    first = inserted()

    def part(rows: list[Row], *names: str) -> None:
        table.upsert(batch(rows).select(["id", "p", "ts", *names]), options=PARTIAL)

    def whole(rows: list[Row]) -> None:
        table.upsert(batch(rows).select(table.schema.names))

    whole(first)
    part([first[0] | {"ts": 6, "v": "part"}, first[1] | {"ts": 4, "v": "late"}, row("n1", p="a", v="new")], "v")
    part([first[i] | {"ts": ts, "amount": 3.5} for i, ts in ((0, 7), (1, 4), (2, 9))], "amount")
    whole([first[0] | {"ts": 8, "v": "whole"}])
    part([first[0] | {"ts": 9, "amount": 1.25}, first[2] | {"ts": 10, "amount": 8.0}], "amount")
    table.delete(["k2"])
    part([first[2] | {"ts": 11, "amount": 1.25}, row("n2", p="b", amount=2.0)], "amount")
    assert isinstance(table.services.log_compaction.run(), Committed)


def assert_same_read_optimized(hudi: Hudi, table: Table) -> None:
    """Compare the read-optimized rows."""
    theirs = hudi.read(table.location, **{"hoodie.datasource.query.type": "read_optimized"})
    assert_same(table.scan(read_optimized=True).to_arrow(), theirs)


def values(table: Table, column: str = "v") -> dict[str, Any]:
    """Return a column's values by id; assert that each id occurs once."""
    rows = table.scan(["id", column]).to_arrow()
    found = dict(zip(*(rows.column(name).to_pylist() for name in ("id", column)), strict=True))
    assert len(found) == rows.num_rows
    return found


def blocks(table: Table) -> list[LogBlock]:
    """Return the blocks of all log files of a table in the order of their instants."""
    storage, found = table.refresh().env.storage, []
    for file in storage.list(""):
        folder, _, name = file.path.rpartition("/")
        if not file.path.startswith(".hoodie/") and parse_log_file(name, folder, 0) is not None:
            with storage.open_input(file.path) as source:
                found += scan_blocks(source)
    return sorted(found, key=lambda block: block.instant)
