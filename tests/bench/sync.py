"""Metastore sync of 5,000 partitions with a local Hive Metastore: the first run, and runs without changes."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from lakehouse.core.table.table import Table
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.publish.sync import sync
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting
from tests.support.hive import metastore_at

PARTITIONS = 5000
FIRST_TARGET_S, SECOND_TARGET_S = 60.0, 2.0
_COLUMNS = 20


def run(setting: Setting) -> list[Comparison]:
    """Print the time of each sync; the tables have one row per partition and do not depend on `--rows`."""
    java = shutil.which("java")
    assert java is not None, "java is not on the PATH; the metastore needs it"
    home = Path(setting.fresh("sync"))
    lines = [("table", "tables in the metastore", "run", "changed", "seconds", "target")]
    with metastore_at(home / "metastore", java) as uri, closing(HiveMetastore(uri)) as metastore:
        for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
            table = wide_table(home / kind.lower(), kind)
            for name in ("first", *(f"number {n}" for n in range(2, 2 + setting.rounds))):
                began = time.perf_counter()
                done = sync(table, metastore)
                took = time.perf_counter() - began
                changed = sum(t.added + t.altered + t.dropped for t in done.tables)
                target = FIRST_TARGET_S if name == "first" else SECOND_TARGET_S
                lines.append((kind, str(len(done.tables)), name, str(changed), f"{took:.2f}", f"{target:.0f}"))
    show_lines(lines)
    return []


def wide_table(location: Path, kind: str) -> Table:
    """Return a table of 5,000 partitions and 20 columns."""
    table = Table.create(
        str(location),
        name=kind.lower(),
        record_key=["id"],
        partition_by=["day", "hour"],
        table_type=kind,
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    numbers = range(PARTITIONS)
    rows = {
        "id": [f"k{number}" for number in numbers],
        "day": [f"d{number // 24:03}" for number in numbers],
        "hour": [f"{number % 24:02}" for number in numbers],
        **{f"column_{n}": list(numbers) for n in range(_COLUMNS)},
    }
    table.bulk_insert(pa.table(rows))
    return table
