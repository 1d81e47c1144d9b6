"""Status of a publication: the state per partition, and whether it is visible to metastore readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.publications import read_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import Publication, PublishedPartition, Stage
from lakehouse.model.texts import text_list
from lakehouse.platform.metastore.names import partition_name, same_location
from lakehouse.platform.metastore.protocol import HivePartition
from lakehouse.platform.metastore.published import INSTANT
from lakehouse.platform.publish.job import PublishJob, hive_partition, partition_columns
from lakehouse.platform.publish.publication_plan import PublishPlan, PublishRequest, iso, period
from lakehouse.platform.publish.run import due
from lakehouse.spec.contracts.publication import PartitionState, PartitionStatus, PublishReason, Visibility


def status(job: PublishJob, names: str | Sequence[str] = ()) -> tuple[PartitionStatus, ...]:
    """Return the status of all partitions, including waiting ones, ordered by name.

    The state is compared with the metastore's partitions. With `names`, only these partitions are returned. Raises
    UserError for a name that is invalid for the publication.
    """
    loaded = job.table.refresh()
    whole = [_whole_name(job, loaded, name) for name in text_list(names, "names")]
    dates = job.spec.partitions == "date"
    plan = due(job, PublishRequest(names=tuple(whole) if dates else ()))
    publication = read_publications(loaded.env).get(job.target, Publication())
    shown = _shown(job)
    rows = [_stored(job, loaded, name, stored, shown.get(name)) for name, stored in publication.partitions.items()]
    rows_by_name = {row.partition: row for row in (*rows, *_planned(plan, publication, shown))}
    return tuple(rows_by_name.get(name) or _absent(name) for name in (whole or sorted(rows_by_name)))


def _whole_name(job: PublishJob, loaded: LoadedTable, name: str) -> str:
    if job.spec.partitions == "date":
        return period(job.spec, name).name
    columns = partition_columns(job, loaded)
    levels = [level.partition("=") for level in name.split("/")]
    if tuple(column for column, equals, _ in levels if equals) != columns or len(levels) != len(columns):
        example = partition_name(columns, ["..."] * len(columns))
        raise UserError(f"{name!r} names no partition of {job.target}; write one like {example}", name=name)
    return name


def _absent(name: str) -> PartitionStatus:
    return PartitionStatus(
        partition=name,
        state=PartitionState.ABSENT,
        code=PublishReason.ABSENT,
        reason="the table has no such partition yet",
    )


def _shown(job: PublishJob) -> dict[str, HivePartition]:
    spec = job.spec
    table = job.metastore.table(spec.database, spec.table)
    if table is None:
        return {}
    names = job.metastore.partition_names(spec.database, spec.table)
    columns = [column.name for column in table.partition_columns]
    partitions = job.metastore.partitions(spec.database, spec.table, names)
    return {partition_name(columns, partition.values): partition for partition in partitions}


def _stored(
    job: PublishJob, loaded: LoadedTable, name: str, stored: PublishedPartition, shown: HivePartition | None
) -> PartitionStatus:
    """Return the status of a stored publication's partition; `shown` is the metastore's partition."""
    lag = None if stored.published_ms is None else (stored.published_ms - stored.ready_ms) / 1000
    visibility, visible_version = _visible(job, loaded, name, stored, shown)
    return PartitionStatus(
        partition=name,
        state=PartitionState(stored.stage.value),
        code=PublishReason.VERSION_CLEANED if stored.stage is Stage.LOST else PublishReason.NONE,
        reason=stored.reason,
        instant=stored.version.instant,
        event_time="" if stored.event_time_ms is None else iso(stored.event_time_ms),
        published="" if stored.published_ms is None else iso(stored.published_ms),
        lag_s=lag,
        files=stored.files,
        size_bytes=stored.size_bytes,
        visibility=visibility,
        visible_version=visible_version,
    )


def _visible(
    job: PublishJob, loaded: LoadedTable, name: str, stored: PublishedPartition, shown: HivePartition | None
) -> tuple[Visibility, str]:
    if shown is None:
        return Visibility.NOTHING, ""
    expected = stored if stored.stage in (Stage.PUBLISHED, Stage.ARCHIVED) else stored.before
    if expected is not None:
        wanted = hive_partition(job, loaded, (), name, expected)
        if same_location(shown.location, wanted.location):
            return Visibility.PUBLISHED_VERSION, expected.version.instant
    return Visibility.OTHER, shown.parameters.get(INSTANT) or shown.location


def _planned(plan: PublishPlan, publication: Publication, shown: Mapping[str, HivePartition]) -> list[PartitionStatus]:
    """Return the status of planned partitions that are not stored in the publication."""
    rows = [
        PartitionStatus(
            partition=planned.name,
            state=PartitionState.READY,
            code=planned.code,
            reason=f"ready: {planned.reason}",
            event_time="" if planned.event_time_ms is None else iso(planned.event_time_ms),
        )
        for planned in plan.publish
    ]
    rows += [
        PartitionStatus(
            partition=waiting.name,
            state=PartitionState.WAITING,
            code=waiting.code,
            reason=waiting.reason,
            event_time="" if waiting.end_ms is None else iso(waiting.end_ms),
            lag_s=None if waiting.lag_ms is None else waiting.lag_ms / 1000,
        )
        for waiting in plan.waiting
    ]
    rows += [
        PartitionStatus(
            partition=missed.name,
            state=missed.state,
            code=missed.code,
            reason=missed.reason,
            event_time="" if missed.end_ms is None else iso(missed.end_ms),
        )
        for missed in plan.missed
    ]
    return [
        replace(row, visibility=Visibility.OTHER, visible_version=shown[row.partition].location)
        if row.partition in shown
        else row
        for row in rows
        if row.partition not in publication.partitions
    ]
