"""Create a published table in memory, and read its partitions without the code under test."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.platform.publish.job import PublishJob
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.publish import parse_publish
from tests.support.tables import make_env

OPTIONS = {"hoodie.payload.event.time.field": "at"}
SCHEMA = pa.schema([("id", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64()), ("day", pa.string())])
Row = tuple[str, str, int]


def rows_of(*rows: Row) -> pa.Table:
    """Return a table of rows (id, time in ISO 8601, value); the column `day` is the date of the time."""
    ids, times, values = zip(*rows, strict=True)
    moments = [datetime.fromisoformat(time) for time in times]
    columns = [ids, moments, values, [time[:10] for time in times]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def make_job(
    settings: Mapping[str, Any] | None = None,
    *,
    storage: Storage | None = None,
    place: Storage | None = None,
    metastore: Metastore | None = None,
    options: Mapping[str, str] = OPTIONS,
    **declared: Any,
) -> PublishJob:
    """Return the publication `sales.orders` of a new table; `declared` are arguments of `Table.create`."""
    section = {"database": "sales", "partitions": "date", **(settings or {})}
    env = make_env(storage=storage or MemoryStorage())
    table = Table.create(
        env.storage.root, name="orders", record_key=["id"], ordering="at", options=options, env=env, **declared
    )
    return PublishJob(
        table=table,
        policies=parse_options(options, also_known=CREATE_OPTIONS),
        spec=parse_publish("sales.orders", section),
        metastore=metastore or MemoryMetastore(),
        place=place or MemoryStorage(),
    )


def reopened(
    job: PublishJob, storage: Storage | None = None, place: Storage | None = None, *, hours: int = 1, **settings: Any
) -> PublishJob:
    """Return the publication as another process opens it, `hours` after the creation of the table.

    `storage` and `place` replace its stores; `settings` replace fields of its spec.
    """
    env = make_env(storage=storage or job.table.refresh().env.storage)
    env.clock.sleep(3600 * hours)
    table = Table.open(env.storage.root, options=OPTIONS, env=env)
    return replace(job, table=table, place=place or job.place, spec=replace(job.spec, **settings))


def shown(job: PublishJob) -> dict[str, dict[str, int]]:
    """Return the rows that a reader of the metastore sees: partition -> id -> value."""
    found = {}
    metastore, spec = job.metastore, job.spec
    if metastore.table(spec.database, spec.table) is None:
        return {}
    for name in metastore.partition_names(spec.database, spec.table):
        (partition,) = metastore.partitions(spec.database, spec.table, [name])
        folder = open_storage(partition.location)
        visible = [file.path for file in folder.list("") if not file.name.startswith(("_", "."))]
        if "Symlink" in partition.format.input_format:
            assert visible == ["manifest"], "the folder of a pointer contains only the manifest"
            files = [_read(url) for url in folder.get("manifest").decode().splitlines()]
        else:
            files = [folder.get(path) for path in visible]
        rows = [row for data in files for row in pq.read_table(io.BytesIO(data), columns=["id", "v"]).to_pylist()]
        assert len({row["id"] for row in rows}) == len(rows), "a key occurs twice"
        found[name] = {row["id"]: row["v"] for row in rows}
    return found


def _read(url: str) -> bytes:
    folder, _, name = url.rpartition("/")
    return open_storage(folder).get(name)
