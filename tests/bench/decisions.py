"""A decision pass of the scheduler over many small tables of one catalog: seconds, and storage requests per table.

One table in ten has services that are due; the others have nothing to do. The first pass starts without recorded
decisions. Later passes also delete old decisions, because the catalog keeps the newest fifty.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from lakehouse.core.storage.counting import VERBS, CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.table.services import SERVICES
from tests.bench.data import KEY, ORDERING, PARTITION, orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

TABLES = 1000
TARGET_S = 10.0
_ROWS = 200
_DUE_EVERY = 10


def run(setting: Setting) -> list[Comparison]:
    """Print the time and the requests of each pass; the tables are small and do not depend on `--rows`."""
    home = Path(setting.fresh("decisions"))
    home.mkdir(parents=True)
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, home, TABLES)
        lines = [("pass", "tables", "chosen", "seconds", "cpu seconds", *(f"{verb} per table" for verb in VERBS))]
        for name in ("first", *(f"number {n}" for n in range(2, 2 + setting.rounds))):
            with counted() as stores:
                wall, cpu = time.perf_counter(), time.process_time()
                choices = decide(catalog, SERVICES)
                took = f"{time.perf_counter() - wall:.2f}", f"{time.process_time() - cpu:.2f}"
            chosen = str(sum(choice.chosen for choice in choices))
            requests = {verb: sum(store.counts()[verb] for store in stores) / TABLES for verb in VERBS}
            lines.append((name, str(TABLES), chosen, *took, *(f"{requests[verb]:.2f}" for verb in VERBS)))
    show_lines(lines)
    return []


def idle_and_busy(home: Path) -> tuple[Path, Path]:
    """Create a table with nothing to do, and one on which a compaction is due."""
    return small_table(home / "idle", 3), small_table(home / "busy", 8)


def register_copies(
    catalog: Catalog,
    home: Path,
    count: int,
    *,
    due_every: int = _DUE_EVERY,
    sources: tuple[Path, Path] | None = None,
) -> None:
    """Register tables as `bench.t<number>`: copies of an idle table, each `due_every`th of a due one."""
    idle, busy = sources or idle_and_busy(home)
    for number in range(count):
        source = busy if number % due_every == 0 else idle
        target = home / f"t{number}"
        shutil.copytree(source, target)
        catalog.register_table(f"bench.t{number}", str(target), new_id=True)


def small_table(target: Path, writes: int) -> Path:
    """Create a merge-on-read table of 20 partitions by `writes` upserts of all its rows."""
    table = Table.create(
        str(target),
        name="small",
        record_key=[KEY],
        partition_by=[PARTITION],
        ordering=ORDERING,
        table_type="MERGE_ON_READ",
    )
    for version in range(writes):
        table.upsert(orders(np.arange(_ROWS), version=version))
    return target


@contextmanager
def counted() -> Iterator[list[CountingStorage]]:
    """Count the storage requests of all tables that are opened in the block."""
    stores: list[CountingStorage] = []

    def counting(location: str, *options: dict[str, str]) -> Storage:
        stores.append(CountingStorage(open_storage(location, *options)))
        return stores[-1]

    with patch("lakehouse.core.table.table.open_storage", counting):
        yield stores
