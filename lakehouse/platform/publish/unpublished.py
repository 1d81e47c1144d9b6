"""Compute when the oldest unpublished partition became ready, for alarms on late publications."""

from __future__ import annotations

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.publications import read_publications
from lakehouse.model.publication import Stage
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.run import due
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.table_spec import TableSpec


def unpublished_since(table: Table, spec: TableSpec) -> int | None:
    """Return the time in UTC milliseconds since which a partition is ready and not published.

    None if the spec declares no publication, or if all ready partitions are published. The metastore is not called.
    """
    declared = spec.publication()
    if declared is None:
        return None
    # Planning needs no metastore and no location for copies.
    job = PublishJob(
        table=table,
        policies=parse_options(spec.call_options()),
        spec=declared,
        metastore=MemoryMetastore(),
        place=open_storage(table.location),
    )
    stored = read_publications(table.refresh().env).get(job.target)
    begun = [p.ready_ms for p in (stored.partitions.values() if stored else ()) if p.stage is Stage.PUBLISHING]
    return min((*(planned.ready_ms for planned in due(job).publish), *begun), default=None)
