"""Deliver the generated files of the demo: the landing zone gets the files of each hour that has passed.

The data starts two days before the first run of the demo, so that the scheduled runs of its DAGs find the files of
their data intervals.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from demo.sample_data import generate

Stream = Literal["orders", "trips"]

STREAMS: tuple[Stream, ...] = ("orders", "trips")
ORDERS_PER_HOUR = 2_000
#: Days of data from the first day on. The demo of an older home has no new data.
LAST_DAYS = 7
_DAYS_BEFORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Generated files and the landing zone of the demo.

    Attributes:
        generated: The folder of the generated files, `<stream>/<day>/<hour>.json`.
        landing: The folder that ingestion reads.
        orders_per_hour: The number of new orders per hour.
    """

    generated: Path
    landing: Path
    orders_per_hour: int = ORDERS_PER_HOUR

    def first_day(self, now: datetime) -> datetime:
        """Return the midnight at which the data starts: that of the first run of the demo, two days before it."""
        days = sorted(path.name for path in (self.generated / "orders").glob("????-??-??"))
        if days:
            return datetime.fromisoformat(days[0]).replace(tzinfo=UTC)
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS_BEFORE)

    def generate_until(self, now: datetime) -> int:
        """Generate the files of all hours that have passed, and return the number of hours."""
        first = self.first_day(now)
        passed = min(max(int((now - first) / timedelta(hours=1)), 24 * _DAYS_BEFORE), LAST_DAYS * 24)
        if len(list((self.generated / "orders").glob("*/*.json"))) < passed:
            # An hour does not depend on the number of hours, so files that exist keep their content.
            fresh = self.generated.with_name(f"{self.generated.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            generate(fresh, hours=passed, orders_per_hour=self.orders_per_hour, start=first.replace(tzinfo=None))
            shutil.rmtree(self.generated, ignore_errors=True)
            fresh.rename(self.generated)
        return passed

    def deliver(self, stream: Stream, until: datetime) -> int:
        """Link the files of all hours before `until` into the landing zone, and return the number of new files."""
        new = 0
        for path in sorted((self.generated / stream).glob("*/*.json")):
            hour = datetime.strptime(f"{path.parent.name} {path.stem}", "%Y-%m-%d %H").replace(tzinfo=UTC)
            target = self.landing / stream / path.parent.name / path.name
            if hour >= until or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.tmp")
            with suppress(FileNotFoundError):
                partial.unlink()
            try:
                os.link(path, partial)
            except OSError:
                # The file system has no hard links.
                shutil.copyfile(path, partial)
            partial.rename(target)
            new += 1
        return new
