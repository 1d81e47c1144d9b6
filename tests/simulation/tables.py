"""The tables at the start of a run. Real operations create each table once per process; runs use copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from tests.simulation.model import ORDERING, Key, Row, Rows
from tests.simulation.processes import simulated
from tests.simulation.store import HEARTBEAT_MS, LOCK_LEASE_MS, MISSES
from tests.simulation.world import BEGIN_MS, HOUR_MS, World, running_in

INDEXES: dict[str, dict[str, str]] = {
    "SIMPLE": {},
    "BUCKET": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"},
    "BUCKETS": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
}
KINDS = (
    "COW_SIMPLE",
    "COW_SIMPLE",
    "COW_BUCKET",
    "MOR_SIMPLE",
    "MOR_SIMPLE",
    "MOR_BUCKET",
    "MOR_BUCKET",
    "MOR_BUCKETS",
)
#: Options of every call.
CALLS = {
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.client.heartbeat.interval_in_ms": str(HEARTBEAT_MS),
    "hoodie.client.heartbeat.tolerable.misses": str(MISSES),
    "lakehouse.lock.lease_ms": str(LOCK_LEASE_MS),
    "hoodie.write.lock.wait_time_ms": "10000",
    "hoodie.write.num.retries.on.conflict.failures": "2",
    "hoodie.write.set.null.for.missing.columns": "true",
    "hoodie.parquet.compression.codec": "none",
    "hoodie.clustering.plan.strategy.sort.columns": "v",
}
#: Options of tables with and without metadata table. It is compacted after few commits.
METADATA = {"hoodie.metadata.enable": "true", "hoodie.metadata.compact.max.delta.commits": "3"}
NO_METADATA = {"hoodie.metadata.enable": "false"}
RECORD_INDEX = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}
STORED: tuple[Key, ...] = tuple((p, f"{p}{i}") for p in ("a", "b") for i in range(3))


@dataclass(frozen=True, slots=True)
class Shape:
    """The type and index of a table, whether it has an ordering column, its pending plan, and its metadata table.

    `expression` and `record_index` say whether the metadata table has an index on an expression, and a record index.
    `version` is the table version.
    """

    kind: str
    ordered: bool
    plan: str = ""
    metadata: bool = False
    expression: bool = False
    record_index: bool = False
    version: int = 9

    @property
    def merges(self) -> bool:
        """Whether the table is merge-on-read."""
        return self.kind.startswith("MOR")

    @property
    def compactions(self) -> tuple[str, ...]:
        """The names of the services that compact the table."""
        if not self.merges:
            return ()
        return ("compaction",) if self.version == 6 else ("compaction", "logcompaction")

    @property
    def compacting(self) -> tuple[str, ...]:
        """The actors that compact a merge-on-read table. In version 6 the names of log compactions are left out."""
        return ("plan", "compaction") if self.version == 6 else ("plan", "plan log", "compaction", "log compaction")

    @property
    def is_clustered(self) -> bool:
        """Whether the table can be clustered."""
        return self.kind.endswith("SIMPLE")


def plans_of(kind: str, version: int = 9) -> tuple[str, ...]:
    """Return the pending plans that a table of this kind can have; the empty text means no plan."""
    compacted = ("compaction", "log compaction") if kind.startswith("MOR") else ()
    if version == 6:
        # Hudi 0.15 would read the rows of a log compaction twice.
        compacted = compacted[:1]
    return ("", *compacted, "clustering") if kind.endswith("SIMPLE") else ("", *compacted)


def batch(rows: Rows) -> pa.Table:
    """Return rows as an Arrow table with the columns of the first row."""
    names = list(next(iter(rows.values())))
    columns: dict[str, object] = {"id": [key for _, key in rows], "p": [partition for partition, _ in rows]}
    return pa.table({**columns, **{n: pa.array([row[n] for row in rows.values()], pa.int64()) for n in names}})


def row_of(value: int, *, ordered: bool) -> Row:
    """Return a row with `value` in all columns."""
    return {"v": value, "w": value, **({ORDERING: value} if ordered else {})}


@cache
def prepared(shape: Shape) -> tuple[MemoryStorage, tuple[Rows, ...]]:
    """Return a table of this shape and its rows after each write. Callers copy the table before they change it."""
    storage, world = MemoryStorage(), World(0)
    world.now_ms = BEGIN_MS - HOUR_MS
    index = shape.kind.rpartition("_")[2]
    with simulated(), running_in(world):
        table = Table.create(
            storage.root,
            name="simulated",
            record_key=["id"],
            partition_by=["p"],
            ordering=ORDERING if shape.ordered else None,
            table_type="MERGE_ON_READ" if shape.merges else "COPY_ON_WRITE",
            options=INDEXES[index]
            | CALLS
            | {"hoodie.write.table.version": str(shape.version)}
            | (METADATA if shape.metadata else NO_METADATA)
            | (RECORD_INDEX if shape.record_index else {}),
            env=world.moving.env(storage),
        )
        rows = {key: row_of(1, ordered=shape.ordered) for key in STORED}
        if shape.expression:
            table.services.create_expression_index("by_time=from_unixtime(v)")
        table.insert(batch(rows))
        if shape.expression:
            # A build is newer than the actions that it contains.
            world.now_ms += 1_000
            table.metadata.rebuild()
            world.now_ms += 1_000
        versions = [dict(rows)]
        if shape.merges:
            for value in (2, 3):
                change = {key: row_of(value, ordered=shape.ordered) for key in STORED[: 5 - value]}
                table.upsert(batch(change))
                rows |= change
                versions.append(dict(rows))
        if shape.plan == "clustering":
            table.services.clustering.schedule(force=True)
        elif shape.plan:
            table.services.named("logcompaction" if shape.plan == "log compaction" else "compaction").schedule(
                force=True
            )
    return storage, tuple(versions)


def shapes(version: int = 9) -> Iterator[Shape]:
    """Yield all shapes of tables at the start of a run."""
    for kind in dict.fromkeys(KINDS):
        for plan in plans_of(kind, version):
            for ordered in (False, True):
                yield Shape(kind, ordered, plan, version=version)
