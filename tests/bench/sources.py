"""Incremental ETL: a chain clean -> daily totals after changes of 1 % of the rows, against its recomputation.

The changed rows are those of the newest day, as in a table of events, and a second time random rows of all days, which
touch all files. The recomputation runs the same queries over the whole tables, as a full refresh does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.bench.data import KEY, orders, updates
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting, spark

DAYS = 100
SHARE = 0.01
#: An incremental run takes at most this share of the time of a recomputation.
TARGET = 1 / 20
#: Incremental runs before the measured ones, of the newest day and of all days: the JVM compiles the steps of short
#: runs for some rounds.
COMPILED, COMPILED_LONG = 14, 4
#: What changes, and whether only the newest files have to be read.
CHANGES = (("1 % of rows changed, the newest day", True), ("1 % of rows changed, all days", False))
_TABLES = OpenedTables()
_BASE = {"hoodie.table.cdc.enabled": "true", "hoodie.parquet.compression.codec": "zstd"}
_CLEAN = """
table: clean
location: clean
record_key: order_id
partition_by: day
options: {hoodie.table.cdc.enabled: "true", hoodie.parquet.compression.codec: zstd}
ingest:
  source: table
  tables: {raw: raw}
  transform:
    sql: SELECT order_id, sha2(note, 256) AS note, day, zone, status, fare + tip AS paid FROM raw WHERE fare >= 0
"""
_DAILY = """
table: daily
location: daily
record_key: [day, zone]
ingest:
  source: table
  tables: {clean: clean}
  changes: groups
  group_by: day
  transform:
    sql: SELECT day, zone, count(*) AS orders, sum(paid) AS paid FROM clean GROUP BY day, zone
"""


def run(setting: Setting) -> list[Comparison]:
    """Compare incremental runs of the chain with full refreshes."""
    comparisons = []
    for what, is_local in CHANGES:
        home = Path(setting.fresh("sources"))
        home.mkdir(parents=True)
        raw = Table.create(
            str(home / "raw"), name="raw", record_key=KEY, partition_by="day", cdc="DATA_BEFORE_AFTER", options=_BASE
        )
        for part in np.array_split(np.arange(setting.rows), max(1, setting.rows // 1_000_000)):
            raw.bulk_insert(days_of(part, setting.rows))
        specs = [parse_spec(text, source="bench") for text in (_CLEAN, _DAILY)]
        _ingest(home, specs, False, 0)
        change = partial(_change, raw, setting.rows, is_local)
        for number in range(COMPILED if is_local else COMPILED_LONG):
            change(number)
            _ingest(home, specs, False, number)
        sides = [
            Side(name="incremental", before=change, run=partial(_ingest, home, specs, False)),
            Side(name="recomputation", run=partial(_ingest, home, specs, True)),
        ]
        samples = interleave(sides, setting.rounds)
        target = TARGET if is_local else None
        comparisons.append(compare(what, samples, "incremental", "recomputation", target))
    return comparisons


def days_of(numbers: np.ndarray, rows: int, version: int = 0) -> pa.Table:
    """Return orders of these numbers with a day; consecutive numbers share a day."""
    days = pa.array([f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}" for day in range(DAYS)])
    number = np.minimum(numbers * DAYS // rows, DAYS - 1)
    return orders(numbers, version).append_column("day", days.take(pa.array(number)))


def _ingest(home: Path, specs: list[TableSpec], full_refresh: bool, number: int) -> None:
    """Run the chain once; each table must have something to do."""
    del number
    for spec in specs:
        command = IngestCommand(table=spec.table, full_refresh=full_refresh)
        report = run_ingest(spark(), spec, command, environ={"LAKEHOUSE_HOME": str(home)}, tables=_TABLES)
        assert report.status is JobStatus.COMMITTED, report.reason


def _change(raw: Table, rows: int, is_local: bool, number: int) -> None:
    count = int(rows * SHARE)
    chosen = np.arange(rows - count, rows) if is_local else updates(rows, SHARE, number)
    raw.upsert(days_of(np.asarray(chosen), rows, version=number + 1))
