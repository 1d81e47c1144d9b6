"""Inputs of a publication: the table, the facts for its plan, and the table and partitions as metastore values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import settled
from lakehouse.core.operations.read.event_time import EventVersions, event_span, watermark
from lakehouse.core.planning.event_time import milliseconds
from lakehouse.core.planning.partition_time import partition_time
from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, parse_partition_path
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.publications import url_of
from lakehouse.errors import UserError
from lakehouse.model.publication import EventSpan, PublishedPartition, Version
from lakehouse.platform.metastore.names import partition_name, partition_values
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable, Metastore
from lakehouse.platform.metastore.published import COMPLETION, COPY, EVENT_TIME, INSTANT, POINTER, STATE, TABLE
from lakehouse.platform.publish.column_types import hive_columns
from lakehouse.platform.publish.publication_plan import PublicationCandidate, PublicationFacts, iso
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.publish import PublishSpec

_PARQUET_SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
COPY_FORMAT = Format(
    input_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
    serde=_PARQUET_SERDE,
)
POINTER_FORMAT = Format(
    input_format="org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
    serde=_PARQUET_SERDE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishJob:
    """A table, the spec of its publication, the metastore, and the storage of archived partitions."""

    table: Table
    policies: Policies
    spec: PublishSpec
    metastore: Metastore
    place: Storage

    @property
    def target(self) -> str:
        """Return the name of the metastore's table, `database.table`."""
        return self.spec.target


def facts_of(job: PublishJob, loaded: LoadedTable, stored: EventSpan) -> PublicationFacts:
    """Return the current facts of the table; lists it once if the publication shows the table's partitions.

    `stored` is the event range that the publication stored. Archived commits that it covers are not read.
    """
    # A later commit may still belong to a version after a pending write, if the table has no completion times.
    loaded = settled(loaded)
    writes = loaded.timeline.writes().by_completion()
    newest = writes[-1] if writes else None
    mark = watermark(loaded, job.policies.event_time)
    # Only publications by date need the event range.
    span = event_span(loaded, stored) if job.spec.partitions == "date" else stored
    return PublicationFacts(
        now_ms=loaded.env.clock.now_ms(),
        newest=None if newest is None else Version(instant=newest.requested, completion=newest.completion),
        watermark_ms=None if mark.value is None else milliseconds(mark.value),
        span=span,
        partitions=table_partitions(job, loaded) if job.spec.partitions == "table" else (),
    )


def table_partitions(job: PublishJob, loaded: LoadedTable) -> tuple[PublicationCandidate, ...]:
    """Return the table's partitions as candidates, with the period in their path."""
    require_partitions(job, loaded)
    keys = loaded.config.keys
    columns, partitions = partition_columns(job, loaded), []
    for path in sorted({file.partition for file in list_data_files(loaded)}):
        values = [value or DEFAULT_PARTITION for value in parse_partition_path(path, keys)]
        span = partition_time(path, keys)
        partitions.append(
            PublicationCandidate(
                name=partition_name(columns, values),
                paths=(path,),
                start_ms=None if span is None else span.start_ms,
                end_ms=None if span is None else span.end_ms,
            )
        )
    return tuple(partitions)


def require_partitions(job: PublishJob, loaded: LoadedTable) -> None:
    """Raise UserError if the publication shows the table's partitions and the table has none."""
    if job.spec.partitions == "table" and not loaded.config.keys.partition_fields:
        raise UserError(
            f"{job.target}: {loaded.env.storage.root} has no partitions to publish; set `partitions: date` in "
            "services.publish to publish the whole table once a day",
            setting="partitions",
        )


def versions_of(loaded: LoadedTable) -> Callable[[int], Version | None]:
    """Return a function from an event time in UTC milliseconds to its version; it reads commits when it is called."""
    opened: list[EventVersions] = []

    def version_at(event_time_ms: int) -> Version | None:
        if not opened:
            opened.append(EventVersions(settled(loaded)))
        instant = opened[0].at(event_time_ms)
        return None if instant is None else Version(instant=instant.requested, completion=instant.completion)

    return version_at


def partition_columns(job: PublishJob, loaded: LoadedTable) -> tuple[str, ...]:
    """Return the names of the partition columns in lower case, as in Hive."""
    if job.spec.partitions == "date":
        return (job.spec.column.lower(),)
    return tuple(name.rpartition(".")[2].lower() for name in loaded.config.keys.partition_fields)


def data_schema(job: PublishJob, loaded: LoadedTable, schema: pa.Schema) -> pa.Schema:
    """Return the data columns of the published table: all columns but the partition columns."""
    hidden = set(partition_columns(job, loaded))
    clash = [field.name for field in schema if field.name.lower() in hidden]
    if clash and job.spec.partitions == "date":
        raise UserError(
            f"{job.target}: the table has a column {clash[0]!r}, which is also the partition column; set "
            "services.publish.column to another name",
            setting="column",
        )
    return pa.schema([field for field in schema if field.name.lower() not in hidden])


def hive_table(job: PublishJob, loaded: LoadedTable, schema: pa.Schema) -> HiveTable:
    """Return the published table as the metastore declares it."""
    return HiveTable(
        database=job.spec.database,
        name=job.spec.table,
        columns=hive_columns(data_schema(job, loaded, schema), timestamps=True),
        partition_columns=tuple(Column(name=name, type="string") for name in partition_columns(job, loaded)),
        location=url_of(job.place, ""),
        format=COPY_FORMAT,
        parameters={TABLE: loaded.env.storage.root, "lakehouse.name": loaded.config.name},
    )


def hive_partition(
    job: PublishJob, loaded: LoadedTable, columns: tuple[Column, ...], name: str, shown: PublishedPartition
) -> HivePartition:
    """Return a partition as the metastore declares it: a folder with a manifest (pointer) or data files (copy)."""
    parameters = {
        STATE: POINTER if shown.manifest else COPY,
        INSTANT: shown.version.instant,
        COMPLETION: shown.version.completion,
    }
    if shown.event_time_ms is not None:
        parameters[EVENT_TIME] = iso(shown.event_time_ms)
    folder = shown.manifest.rpartition("/")[0]
    return HivePartition(
        values=partition_values(name),
        location=url_of(loaded.env.storage, folder) if shown.manifest else url_of(job.place, shown.copy),
        format=POINTER_FORMAT if shown.manifest else COPY_FORMAT,
        columns=columns,
        parameters=parameters,
    )
