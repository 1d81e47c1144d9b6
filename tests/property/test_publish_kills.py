"""Killed publication processes: partitions are complete at any time, and the next run completes the publication.

The test uses a real metastore. Each round makes another day ready, kills `lakehouse publish run` at a random time of
the run, and runs it again. tests/unit/platform/publish/test_runs.py has crashes at every single step.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from datetime import date, timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pyarrow as pa

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.cli.publish import opened
from lakehouse.platform.publish.run import due
from tests.support.processes import forked
from tests.support.publishing import OPTIONS, rows_of, shown

ROUNDS = 10 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
SPEC = """
table: sales.orders
location: {home}/orders
record_key: id
ordering: at
options: {{hoodie.payload.event.time.field: at}}
services:
  publish: {{database: publish_kills, partitions: date, metastore: "{uri}", retain: 0s}}
"""


def publish(spec: str, log: str, *flags: str) -> None:
    """Publish the ready partitions; the function of a separate process."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(main(["publish", "run", "--table", spec, *flags]))


class Shop:
    """A table with publication by day, and the expected rows of each partition."""

    def __init__(self, home: Path, uri: str) -> None:
        self.spec, self.log = home / "orders.yaml", home / "log"
        self.spec.write_text(SPEC.format(home=home, uri=uri))
        self.table = Table.create(f"{home}/orders", name="orders", record_key=["id"], ordering="at", options=OPTIONS)
        self.days: list[str] = []
        self.rows: dict[str, int] = {}
        self.expected: dict[str, dict[str, int]] = {}
        self.next_day()

    def next_day(self) -> None:
        """Write a day; this makes the previous day ready, with all rows that were written before."""
        if self.days:
            self.expected[f"dt={self.days[-1]}"] = dict(self.rows)
        number = len(self.days) + 1
        day = str(date(2025, 1, 1) + timedelta(days=number))
        new = {f"k{random.randrange(2 * number)}": number for _ in range(3)}
        rows: pa.Table = rows_of(*((key, f"{day}T10:00:00", value) for key, value in new.items()))
        self.table.upsert(rows)
        self.rows |= new
        self.days.append(day)

    def start(self, *flags: str) -> ForkServerProcess:
        processes = forked()
        child = processes.Process(target=publish, args=(str(self.spec), str(self.log), *flags))
        child.start()
        return child

    def end(self, *flags: str) -> None:
        child = self.start(*flags)
        child.join(60)
        assert child.exitcode == 0, self.log.read_text()[-3000:]

    def shown(self) -> dict[str, dict[str, int]]:
        return shown(opened(str(self.spec), {}))


def test_killed_publication_shows_complete_partitions_and_the_next_run_completes_it(
    tmp_path: Path, hive_uri: str
) -> None:
    shop = Shop(tmp_path, hive_uri)
    shop.next_day()
    shop.end()
    shop.next_day()
    began = time.monotonic()
    shop.end("--archive-now")
    takes_s, killed = time.monotonic() - began, 0
    assert shop.shown() == shop.expected
    for _ in range(ROUNDS):
        flags = random.choice([(), ("--archive-now",)])
        before = dict(shop.expected)
        shop.next_day()
        child = shop.start(*flags)
        time.sleep(random.uniform(0, takes_s))
        with suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join(60)
        killed += child.exitcode == -signal.SIGKILL
        # The killed run published the whole day or nothing; the other days are unchanged.
        found = shop.shown()
        assert found in (before, shop.expected), shop.log.read_text()[-3000:]
        shop.end(*flags)
        assert shop.shown() == shop.expected
        assert due(opened(str(shop.spec), {})).is_empty
    assert killed > 0
