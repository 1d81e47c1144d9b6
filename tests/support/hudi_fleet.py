"""A small fleet of tables that Apache Hudi 0.15 and Hudi 1.2 wrote, as a team would find them in its lake.

    sales/   copy-on-write and merge-on-read tables in several partition styles
    risk/    change data capture, metadata tables, indexes, buckets
    ops/     archived timelines, clusterings, bootstrapped tables, writers that died

Each table has its rows in the dict `expected`: `{id: v}` after all writes of Hudi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.hudi import Hudi

_SCHEMA = pa.schema(
    [("id", pa.string()), ("region", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("v", pa.string())]
)
_KEY = "hoodie.datasource.write.keygenerator.class"
_PARTITION = "hoodie.datasource.write.partitionpath.field"
_HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
_NO_PARTITIONS = {_PARTITION: "", _KEY: "org.apache.hudi.keygen.NonpartitionedKeyGenerator"}
_TWO_LEVELS = {_PARTITION: "region,day", _KEY: "org.apache.hudi.keygen.ComplexKeyGenerator"}
_BY_TIME = {
    _PARTITION: "ts",
    _KEY: "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
    "hoodie.keygen.timebased.timezone": "UTC",
}
_MOR = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
_NO_METADATA = {"hoodie.metadata.enable": "false"}
_CDC = {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": "data_before_after"}
_BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
_RECORD_INDEX = {"hoodie.metadata.record.index.enable": "true", "hoodie.index.type": "RECORD_INDEX"}
_STATS = {"hoodie.metadata.index.column.stats.enable": "true", "hoodie.metadata.index.bloom.filter.enable": "true"}
_ARCHIVE = {
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
    "hoodie.cleaner.commits.retained": "2",
    "hoodie.commits.archival.batch": "1",
}
_COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
_CLUSTER = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "2"}
_SHARED = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
_BOOTSTRAP = {
    "hoodie.datasource.write.operation": "bootstrap",
    "hoodie.bootstrap.mode.selector": "org.apache.hudi.client.bootstrap.selector.MetadataOnlyBootstrapModeSelector",
    # Hudi 1.2 fails to commit a bootstrap with column statistics.
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
}
_DEFAULTS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    _PARTITION: "day",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.embed.timeline.server": "false",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTable:
    """A table of the fleet.

    Attributes:
        path: Folder relative to the lake.
        version: The table version that Hudi writes.
        options: Options of Hudi's writer.
        writes: Number of upserts after the first one.
        is_bootstrapped: Whether Hudi bootstrapped the table from Parquet files.
    """

    path: str
    version: int
    options: Mapping[str, str] = field(default_factory=dict)
    writes: int = 2
    is_bootstrapped: bool = False

    @property
    def name(self) -> str:
        """The name of the table: its last folder."""
        return self.path.rpartition("/")[2]

    @property
    def writer_options(self) -> dict[str, str]:
        """All options of Hudi's writer."""
        return {**_DEFAULTS, "hoodie.table.name": self.name, **self.options}

    @property
    def expected(self) -> dict[str, str]:
        """The rows after all writes: v by id."""
        return {row["id"]: row["v"] for number in range(self.writes + 1) for row in batch(number).to_pylist()}


#: Tables that Hudi 0.15 writes: version 6.
OF_0_15 = (
    FleetTable(path="sales/orders", version=6, options=_HIVE, writes=3),
    FleetTable(path="sales/carts", version=6, options=_MOR | _COMPACT | _NO_METADATA),
    FleetTable(path="sales/customers", version=6, options=_NO_PARTITIONS),
    FleetTable(path="sales/clicks", version=6, options=_MOR | _TWO_LEVELS | _NO_METADATA),
    FleetTable(path="sales/visits", version=6, options=_BY_TIME | _NO_METADATA),
    FleetTable(path="risk/trades", version=6, options=_CDC | _NO_METADATA),
    FleetTable(path="risk/limits", version=6, options=_STATS | _HIVE),
    FleetTable(path="risk/accounts", version=6, options=_RECORD_INDEX),
    FleetTable(path="risk/ledger", version=6, options=_MOR | _BUCKET | _NO_METADATA),
    FleetTable(path="risk/quotes", version=6, options=_SHARED | _HIVE | _NO_METADATA),
    FleetTable(path="ops/archived", version=6, options=_ARCHIVE | _NO_METADATA, writes=8),
    FleetTable(path="ops/clustered", version=6, options=_CLUSTER | _NO_METADATA, writes=2),
    FleetTable(path="ops/imported", version=6, options=_HIVE | _BOOTSTRAP | _NO_METADATA, is_bootstrapped=True),
)
_V6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
_V8 = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
#: Tables that Hudi 1.2 writes, in three versions.
OF_1_2 = (
    FleetTable(path="sales/returns", version=6, options=_V6 | _HIVE | _NO_METADATA),
    FleetTable(path="sales/stock", version=6, options=_V6 | _MOR),
    FleetTable(path="sales/prices", version=8, options=_V8 | _HIVE),
    FleetTable(path="sales/parcels", version=8, options=_V8 | _MOR | _COMPACT),
    FleetTable(path="sales/shops", version=9, options=_NO_PARTITIONS),
    FleetTable(path="sales/routes", version=9, options=_TWO_LEVELS | _HIVE),
    FleetTable(path="sales/events", version=9, options=_MOR | _BY_TIME),
    FleetTable(path="risk/alerts", version=8, options=_V8 | _RECORD_INDEX),
    FleetTable(path="risk/books", version=8, options=_V8 | _MOR | _BUCKET),
    FleetTable(path="risk/swaps", version=9, options=_CDC),
    FleetTable(path="risk/bonds", version=9, options=_MOR | _STATS | _HIVE),
    FleetTable(path="risk/clients", version=9, options=_MOR | _RECORD_INDEX),
    FleetTable(path="risk/notes", version=9, options=_SHARED | _HIVE),
    FleetTable(path="ops/history", version=9, options=_ARCHIVE, writes=8),
    FleetTable(path="ops/sorted", version=9, options=_CLUSTER),
    FleetTable(path="ops/merged", version=9, options=_MOR | _COMPACT | _NO_METADATA, writes=4),
    FleetTable(path="ops/adopted", version=9, options=_HIVE | _BOOTSTRAP, is_bootstrapped=True),
)


def batch(number: int) -> pa.Table:
    """Return the rows of a write: the first inserts six ids in two days, each later one changes two and adds one."""
    ids = [f"k{n}" for n in range(6)] if number == 0 else [f"k{number % 6}", f"k{(number + 1) % 6}", f"n{number}"]
    days = ["2026-11-01" if key[-1] in "024" else "2026-11-02" for key in ids]
    hours = [1_793_500_000_000 + (0 if day.endswith("1") else 86_400_000) for day in days]
    rows = {
        "id": ids,
        "region": ["north"] * len(ids),
        "day": days,
        # A table that is partitioned by time needs a ts that does not leave its day.
        "ts": [hour + number for hour in hours],
        "v": [f"{key} {number}" for key in ids],
    }
    return pa.table(rows, schema=_SCHEMA)


def build(lake: Path, hudi: Hudi, tables: Sequence[FleetTable]) -> None:
    """Write tables of the fleet below a folder."""
    for table in tables:
        location, options = str(lake / table.path), table.writer_options
        if table.is_bootstrapped:
            source = _parquet(lake.parent / "sources" / table.name)
            bootstrap = {**options, "hoodie.bootstrap.base.path": str(source)}
            # The schema of the rows that are given becomes the schema of the table if it has columns.
            hudi.write(location, batch(0).select([]).slice(0, 0), bootstrap, mode="overwrite")
            options = {**options, "hoodie.datasource.write.operation": "upsert"}
        else:
            hudi.write(location, batch(0), options, mode="overwrite")
        for number in range(1, table.writes + 1):
            hudi.write(location, batch(number), options)


def _parquet(folder: Path) -> Path:
    """Write the first rows as plain Parquet files in Hive-style partitions."""
    rows = batch(0)
    for day in sorted(set(rows["day"].to_pylist())):
        place = folder / f"day={day}"
        place.mkdir(parents=True)
        mask = pa.compute.equal(rows["day"], day)
        pq.write_table(rows.filter(mask).drop_columns(["day"]), place / "part-0.parquet")
    return folder
