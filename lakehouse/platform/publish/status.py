"""What a publication looks like: each partition, how far it has come, and whether readers see it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition: state is absent, waiting, ready, published, archived, withdrawn, lost, expired, or one of
    what a run is at.

    `lag_s` is, of one that waits, how far the watermark is from its end; of others, how long after it was found ready
    it appeared. `seen` is what readers see: as written down, something else, or nothing.
    """

    partition: str
    state: str
    version: str
    event_time: str
    published: str
    lag_s: float | None
    files: int
    size_bytes: int
    seen: str
    why: str


def status(job: PublishJob, names: str | Sequence[str] = ()) -> tuple[PartitionStatus, ...]:
    """Return all partitions in order, those that wait included; the metastore is asked what it shows.

    With `names`, of one or more partitions, return these; raises UserError for a name that no partition can have.
    """
    loaded = job.table.refresh()
    whole = [_whole_name(job, loaded, name) for name in text_list(names, "names")]
    dates = job.spec.partitions == "date"
    plan = due(job, PublishRequest(names=tuple(whole) if dates else ()))
    publication = read_publications(loaded.env).get(job.target, Publication())
    there = _shown(job)
    rows = [_told(job, loaded, name, told, there) for name, told in publication.partitions.items()]
    found = {row.partition: row for row in (*rows, *_waiting(plan, publication, there))}
    return tuple(found.get(name) or _absent(name) for name in (whole or sorted(found)))


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
        state="absent",
        version="",
        event_time="",
        published="",
        lag_s=None,
        files=0,
        size_bytes=0,
        seen="nothing",
        why="the table has no such partition yet",
    )


def _shown(job: PublishJob) -> dict[str, HivePartition]:
    spec = job.spec
    table = job.metastore.table(spec.database, spec.table)
    if table is None:
        return {}
    names = job.metastore.partition_names(spec.database, spec.table)
    columns = [column.name for column in table.partition_columns]
    found = job.metastore.partitions(spec.database, spec.table, names)
    return {partition_name(columns, partition.values): partition for partition in found}


def _told(
    job: PublishJob, loaded: LoadedTable, name: str, told: PublishedPartition, there: Mapping[str, HivePartition]
) -> PartitionStatus:
    lag = None if told.published_ms is None else (told.published_ms - told.ready_ms) / 1000
    return PartitionStatus(
        partition=name,
        state=str(told.stage),
        version=told.version.instant,
        event_time="" if told.event_time_ms is None else iso(told.event_time_ms),
        published="" if told.published_ms is None else iso(told.published_ms),
        lag_s=lag,
        files=told.files,
        size_bytes=told.size_bytes,
        seen=_seen(job, loaded, name, told, there.get(name)),
        why=told.reason,
    )


def _seen(
    job: PublishJob, loaded: LoadedTable, name: str, told: PublishedPartition, found: HivePartition | None
) -> str:
    if found is None:
        return "nothing"
    shown = told if told.stage in (Stage.PUBLISHED, Stage.ARCHIVED) else told.before
    if shown is not None:
        wanted = hive_partition(job, loaded, (), name, shown)
        if same_location(found.location, wanted.location):
            return f"version {shown.version.instant}"
    return f"another: {found.parameters.get(INSTANT) or found.location}"


def _waiting(plan: PublishPlan, publication: Publication, there: Mapping[str, HivePartition]) -> list[PartitionStatus]:
    ready = [(p.name, p.event_time_ms, None, f"ready: {p.reason}", "ready") for p in plan.publish]
    waiting = [(w.name, w.end_ms, w.lag_ms, w.reason, "waiting") for w in plan.waiting]
    waiting += [(m.name, m.end_ms, None, m.reason, m.state) for m in plan.missed]
    return [
        PartitionStatus(
            partition=name,
            state=state,
            version="",
            event_time="" if end is None else iso(end),
            published="",
            lag_s=None if lag is None else lag / 1000,
            files=0,
            size_bytes=0,
            seen=f"another: {there[name].location}" if name in there else "nothing",
            why=why,
        )
        for name, end, lag, why, state in (*ready, *waiting)
        if name not in publication.partitions
    ]
