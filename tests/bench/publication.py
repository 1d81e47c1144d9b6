"""Publication of a day as a pointer: the time from its signal until the Hive Metastore has the partition."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.publish import run as publication
from lakehouse.platform.publish.job import PublishJob
from lakehouse.spec.table.publish import parse_publish
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting
from tests.support.hive import metastore_at

DAYS = 30
TARGET_S = 5.0
_FIRST = datetime(2026, 3, 1, tzinfo=UTC)
_EVENT_TIME = {"hoodie.payload.event.time.field": "at"}


def run(setting: Setting) -> list[Comparison]:
    """Print the seconds from signal to visible partition for several days of one table."""
    java = shutil.which("java")
    assert java is not None, "java is not on the PATH; the metastore needs it"
    home = Path(setting.fresh("publication"))
    lines = [("day", "seconds from signal to visible", "target")]
    with metastore_at(home / "metastore", java) as uri, closing(HiveMetastore(uri)) as metastore:
        job = _job(home, metastore)
        for number in range(setting.rounds):
            day = f"{_FIRST + timedelta(days=number):%Y-%m-%d}"
            began = time.perf_counter()
            publication.signal(job, day)
            done = publication.run(job)
            seconds = time.perf_counter() - began
            assert f"dt={day}" in metastore.partition_names("bench", "orders"), done
            lines.append((day, f"{seconds:.2f}", f"{TARGET_S:.0f}"))
    show_lines(lines)
    return []


def _job(home: Path, metastore: HiveMetastore) -> PublishJob:
    """Return the publication of a table with one commit per day."""
    table = Table.create(str(home / "orders"), name="orders", record_key=["id"], ordering="at", options=_EVENT_TIME)
    for number in range(DAYS):
        at = (_FIRST + timedelta(days=number, hours=10)).replace(tzinfo=None)
        table.upsert(pa.table({"id": [f"k{number}"], "at": pa.array([at], pa.timestamp("us"))}))
    settings = {"database": "bench", "partitions": "date", "ready": "signal"}
    return PublishJob(
        table=table,
        policies=table.services_as_loaded.policies,
        spec=parse_publish("sales.orders", settings),
        metastore=metastore,
        place=open_storage(str(home / "orders_published")),
    )
