"""Publication runs: due, run, withdraw, signal. After a crash at any line the next run completes the work.

    state: publishing    version and name of the manifest; its files are pinned as soon as the manifest exists
    manifest             the files of the version; then a check under the lock that no clean deleted them
    metastore            the partition appears, or moves to the new version, in one call; readers see it from here on
    state: published     the previous manifest or copy is retired, and deleted after services.publish.retain

A withdrawal has the order state, metastore, state. The next run restores a partition that another program changed or
dropped in the metastore.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.publications import change_publication, delete_copy, delete_manifest, read_publications
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.model.publication import Publication, PublishedPartition, Stage
from lakehouse.model.texts import text_list
from lakehouse.platform.publish.copy import copy_partition
from lakehouse.platform.publish.job import PublishJob, facts_of, partition_columns, table_partitions, versions_of
from lakehouse.platform.publish.metastore_partitions import apply_partitions, ensure_table, record_published, repair
from lakehouse.platform.publish.publication_plan import PublishPlan, PublishRequest, period, plan_publication
from lakehouse.platform.publish.version_pins import begin, pin, require_names_of_versions, store_event_span

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """Outcome of a run, by names of partitions.

    `repaired` are partitions that another program had changed in the metastore. `lost` are all partitions whose
    versions were cleaned before they were published, including in earlier runs. `expired` counts partitions older than
    `max_age`.
    """

    published: tuple[str, ...] = ()
    archived: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    waiting: int = 0
    lost: tuple[str, ...] = ()
    expired: int = 0

    @property
    def did_something(self) -> bool:
        """Return whether the run changed a partition."""
        return bool(self.published or self.archived or self.withdrawn or self.repaired)


def due(job: PublishJob, request: PublishRequest | None = None) -> PublishPlan:
    """Return the plan of a run now; neither writes nor calls the metastore."""
    loaded = job.table.refresh()
    return _planned(job, loaded, _named(job, loaded, request or PublishRequest()))


def signal(job: PublishJob, names: str | Sequence[str]) -> tuple[str, ...]:
    """Record that partitions are ready; return their full names.

    The next run publishes them, even if they are already published. Dates may be given by their value alone.
    """
    if "signal" not in job.spec.ready:
        raise UserError(
            f"{job.target}: services.publish.ready is {', '.join(job.spec.ready)}, so a signal changes nothing; add "
            "`signal` to services.publish.ready",
            setting="ready",
        )
    loaded = job.table.refresh()
    full_names = _named(job, loaded, PublishRequest(names=text_list(names, "names"))).names
    now_ms = loaded.env.clock.now_ms()

    def change(publication: Publication) -> Publication:
        return replace(publication, signals={**publication.signals, **dict.fromkeys(full_names, now_ms)})

    change_publication(loaded.env, job.target, change)
    return full_names


def run(job: PublishJob, request: PublishRequest | None = None, *, engine: Engine | None = None) -> PublishReport:
    """Publish ready partitions, archive old ones, complete unfinished ones, and restore changed ones.

    Args:
        job: the publication. request: restricts the run; None means all due partitions. engine: runs the copy tasks;
            without it partitions that need a copy wait for a run with an engine.

    Raises:
        RetryableError: the metastore does not answer.
        UserError: another table has the name of this publication's table, or the version of a partition was cleaned or
            rolled back before it was published.
    """
    loaded = job.table.refresh()
    request = _named(job, loaded, request or PublishRequest())
    plan = _planned(job, loaded, request)
    if plan.is_empty and not read_publications(loaded.env).get(job.target, Publication()).partitions:
        store_event_span(job, loaded, plan)
        return _reported(plan, PublishReport())
    require_names_of_versions(job, loaded, plan)
    ensure_table(job, loaded)
    publication = begin(job, loaded, plan)
    withdrawn = _withdraw_begun(job, loaded, publication)
    taken = pin(job, loaded, publication)
    publication = read_publications(loaded.env)[job.target]
    mine = sorted(name for name, p in publication.partitions.items() if p.stage is Stage.PUBLISHING)
    plain = [name for name in mine if not publication.partitions[name].needs_copy]
    apply_partitions(job, loaded, {name: publication.partitions[name] for name in plain})
    record_published(job, loaded, {name: publication.partitions[name] for name in plain})
    archived: tuple[str, ...] = ()
    if engine is not None:
        copied = [name for name, p in publication.partitions.items() if p.needs_copy or p.stage is Stage.ARCHIVING]
        archived = _archive(job, loaded, sorted({*plan.archive, *copied}), engine)
    repaired = repair(job, loaded, skip=frozenset(plain) | frozenset(archived))
    _delete_retired(job, loaded)
    if taken:
        names = ", ".join(sorted(taken))
        raise UserError(
            f"{job.target}: the version of {names} was cleaned or rolled back before it was published; publish with "
            "--newest to show the newest version, or withdraw it, and retain more versions "
            "(hoodie.clean.commits.retained). Later runs report the partition as lost and continue",
            taken=sorted(taken),
        )
    done = PublishReport(published=tuple(plain), archived=archived, withdrawn=withdrawn, repaired=repaired)
    return _reported(plan, done)


def _reported(plan: PublishPlan, done: PublishReport) -> PublishReport:
    """Return the report of a run, including the partitions that its plan skipped."""
    expired = len(plan.missed) - len(plan.lost)
    return replace(done, waiting=len(plan.waiting), lost=plan.lost, expired=expired)


def withdraw(job: PublishJob, names: str | Sequence[str]) -> tuple[str, ...]:
    """Remove partitions from the metastore and release their versions; return the names of the removed ones.

    They are published again only after a signal or a forced request.
    """
    loaded = job.table.refresh()
    full_names = _named(job, loaded, PublishRequest(names=text_list(names, "names"))).names
    stored = read_publications(loaded.env).get(job.target, Publication()).partitions
    unknown = [name for name in full_names if name not in stored]
    if unknown:
        raise UserError(f"{job.target}: {unknown[0]} is not published, so it cannot be withdrawn", name=unknown[0])

    def change(publication: Publication) -> Publication:
        for name in full_names:
            partition = publication.partitions.get(name)
            if partition is not None and partition.stage is not Stage.WITHDRAWN:
                publication = publication.put(name, replace(partition, stage=Stage.WITHDRAWING))
        return publication

    return _withdraw_begun(job, loaded, change_publication(loaded.env, job.target, change))


def _planned(job: PublishJob, loaded: LoadedTable, request: PublishRequest) -> PublishPlan:
    publication = read_publications(loaded.env).get(job.target, Publication())
    facts = facts_of(job, loaded, publication.span)
    return plan_publication(job.spec, publication, facts, request, versions_of(loaded))


def _named(job: PublishJob, loaded: LoadedTable, request: PublishRequest) -> PublishRequest:
    """Return the request with full partition names; a date alone and a path of the table are also accepted."""
    if not request.names:
        return request
    if job.spec.partitions == "date":
        return replace(request, names=tuple(period(job.spec, name).name for name in request.names))
    paths = {path: c.name for c in table_partitions(job, loaded) for path in c.paths or ()}
    names = tuple(paths.get(name.strip("/"), name) for name in request.names)
    columns = partition_columns(job, loaded)
    for name in names:
        if tuple(level.partition("=")[0] for level in name.split("/")) != columns:
            expected = "/".join(f"{column}=..." for column in columns)
            raise UserError(f"{name!r} names no partition of {job.target}; write one like {expected}", name=name)
    return replace(request, names=names)


def _archive(job: PublishJob, loaded: LoadedTable, names: Sequence[str], engine: Engine) -> tuple[str, ...]:
    """Copy partitions sequentially; readers get the previous state of each partition until its copy is complete."""
    done = []
    for name in names:
        folder = f"{name}/{{}}-{loaded.env.ids.uuid()[:8]}"
        now_ms = loaded.env.clock.now_ms()

        def begun(
            publication: Publication, name: str = name, folder: str = folder, now_ms: int = now_ms
        ) -> Publication:
            before = publication.partitions.get(name)
            if before is None or not (before.stage in (Stage.PUBLISHED, Stage.ARCHIVING) or before.needs_copy):
                return publication
            if before.copy:
                # An earlier run, which may still be active, began this copy.
                publication = publication.retire("", before.copy, now_ms)
            shown = before.before if before.stage is not Stage.PUBLISHED else before
            started = replace(before, stage=Stage.ARCHIVING, copy=folder.format(before.version.instant), before=shown)
            return publication.put(name, started)

        started = change_publication(loaded.env, job.target, begun).partitions.get(name)
        if started is None or started.copy.rpartition("-")[2] != folder.rpartition("-")[2]:
            continue
        copied = copy_partition(job, loaded, engine, name, started)

        def complete(
            publication: Publication,
            name: str = name,
            started: PublishedPartition = started,
            copied: PublishedPartition = copied,
        ) -> Publication:
            if publication.partitions.get(name) != started:
                raise RetryableError(
                    f"{job.target}: another run archives {name}; check the status, then run again", name=name
                )
            return publication.put(name, copied)

        # From here on any run that loads this state publishes the copy.
        shown = {name: change_publication(loaded.env, job.target, complete).partitions[name]}
        apply_partitions(job, loaded, shown)
        record_published(job, loaded, shown)
        done.append(name)
    return tuple(done)


def _withdraw_begun(job: PublishJob, loaded: LoadedTable, publication: Publication) -> tuple[str, ...]:
    names = sorted(name for name, p in publication.partitions.items() if p.stage is Stage.WITHDRAWING)
    if not names:
        return ()
    job.metastore.drop_partitions(job.spec.database, job.spec.table, names)
    now_ms = loaded.env.clock.now_ms()

    def change(now: Publication) -> Publication:
        for name in names:
            partition = now.partitions.get(name)
            if partition is None or partition.stage is not Stage.WITHDRAWING:
                continue
            for shown in (partition, partition.before):
                if shown is not None:
                    now = now.retire(shown.manifest, shown.copy, now_ms)
            now = now.put(
                name, replace(partition, stage=Stage.WITHDRAWN, manifest="", copy="", before=None, ready_ms=now_ms)
            )
        return now

    change_publication(loaded.env, job.target, change)
    return tuple(names)


def _delete_retired(job: PublishJob, loaded: LoadedTable) -> None:
    """Delete manifests and copies that were retired long enough ago; after a crash the next run deletes the rest."""
    publication = read_publications(loaded.env)[job.target]
    until_ms = loaded.env.clock.now_ms() - job.spec.retain_s * 1000
    old = [retired for retired in publication.retired if retired.at_ms <= until_ms]
    if not old:
        return
    used = publication.shown
    try:
        for retired in old:
            if retired.manifest and retired.manifest not in used:
                delete_manifest(loaded.env, job.target, retired.manifest)
            left = delete_copy(job.place, retired.copy) if retired.copy and retired.copy not in used else ()
            if left:
                logger.warning(
                    "%s: %d files in %s are not part of the copy and are kept", job.target, len(left), retired.copy
                )
    except LakehouseError as error:
        logger.warning(
            "%s: retired manifests or copies were not deleted; the next run tries again: %s", job.target, error
        )
        return

    def change(now: Publication) -> Publication:
        return replace(now, retired=tuple(retired for retired in now.retired if retired not in old))

    change_publication(loaded.env, job.target, change)
