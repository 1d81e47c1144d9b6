"""Publication: due, run, withdraw, signal. Each may die at any line; the next run ends what it finds begun.

    state: publishing    which version, which manifest: from here on its files are pinned, as soon as it is there
    manifest             the files of the version; then, under the lock, that no clean has taken them
    metastore            the partition appears, or moves to the new version, in one call: this is what readers see
    state: published     what was shown before is retired, and deleted when nobody can be reading it any more

What is withdrawn goes the other way: state, metastore, state. A partition that somebody else changed or dropped in the
metastore is put right by the next run.
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
from lakehouse.platform.publish.metastore_partitions import ensure_table, repair, settle, show
from lakehouse.platform.publish.publication_plan import PublishPlan, PublishRequest, period, plan_publication
from lakehouse.platform.publish.version_pins import begin, pin, store_event_span

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """What a run did, by names of partitions; `repaired` had been changed in the metastore by another program.

    `lost` are all that are not published because their versions were cleaned before, of earlier runs, too; `expired`
    counts those that are older than `max_age`.
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
        """Whether anything changed."""
        return bool(self.published or self.archived or self.withdrawn or self.repaired)


def due(job: PublishJob, asked: PublishRequest | None = None) -> PublishPlan:
    """Return what a run would do now; writes nothing, and asks the metastore nothing."""
    loaded = job.table.refresh()
    return _planned(job, loaded, _named(job, loaded, asked or PublishRequest()))


def signal(job: PublishJob, names: str | Sequence[str]) -> tuple[str, ...]:
    """Say that partitions are ready, by their names or, of dates, by their values; return the names.

    A partition that is published already is published again, at the version of the next run.
    """
    if "signal" not in job.spec.ready:
        raise UserError(
            f"{job.target}: services.publish.ready is {', '.join(job.spec.ready)}, so a signal changes nothing; add "
            "`signal` to it",
            setting="ready",
        )
    loaded = job.table.refresh()
    found = _named(job, loaded, PublishRequest(names=text_list(names, "names"))).names
    now_ms = loaded.env.clock.now_ms()

    def told(publication: Publication) -> Publication:
        return replace(publication, signals={**publication.signals, **dict.fromkeys(found, now_ms)})

    change_publication(loaded.env, job.target, told)
    return found


def run(job: PublishJob, asked: PublishRequest | None = None, *, engine: Engine | None = None) -> PublishReport:
    """Publish what is ready, archive what is old enough, go on with what was begun, and put right what was changed.

    Files are copied on `engine`; without one, what has to be copied is left for a run that has one. Raises
    RetryableError where the metastore does not answer, UserError where another table has the name of this publication's
    or the version of a partition was cleaned or undone before it was published.
    """
    loaded = job.table.refresh()
    asked = _named(job, loaded, asked or PublishRequest())
    plan = _planned(job, loaded, asked)
    if plan.is_empty and not read_publications(loaded.env).get(job.target, Publication()).partitions:
        store_event_span(job, loaded, plan)
        return _reported(plan, PublishReport())
    ensure_table(job, loaded)
    publication = begin(job, loaded, plan)
    withdrawn = _withdraw_begun(job, loaded, publication)
    taken = pin(job, loaded, publication)
    publication = read_publications(loaded.env)[job.target]
    mine = sorted(name for name, p in publication.partitions.items() if p.stage is Stage.PUBLISHING)
    plain = [name for name in mine if not publication.partitions[name].needs_copy]
    show(job, loaded, {name: publication.partitions[name] for name in plain})
    settle(job, loaded, {name: publication.partitions[name] for name in plain})
    archived: tuple[str, ...] = ()
    if engine is not None:
        copied = [name for name, p in publication.partitions.items() if p.needs_copy or p.stage is Stage.ARCHIVING]
        archived = _archive(job, loaded, sorted({*plan.archive, *copied}), engine)
    repaired = repair(job, loaded, known=frozenset(plain) | frozenset(archived))
    _sweep(job, loaded)
    if taken:
        names = ", ".join(sorted(taken))
        raise UserError(
            f"{job.target}: the version of {names} was cleaned or undone before it was published; publish with "
            "--newest to show the newest one, or withdraw it, and keep more versions (hoodie.clean.commits.retained). "
            "What was cleaned is lost: later runs report it and go on",
            taken=sorted(taken),
        )
    done = PublishReport(published=tuple(plain), archived=archived, withdrawn=withdrawn, repaired=repaired)
    return _reported(plan, done)


def _reported(plan: PublishPlan, done: PublishReport) -> PublishReport:
    """Return the report of a run with what its plan left."""
    expired = len(plan.missed) - len(plan.lost)
    return replace(done, waiting=len(plan.waiting), lost=plan.lost, expired=expired)


def withdraw(job: PublishJob, names: str | Sequence[str]) -> tuple[str, ...]:
    """Take partitions out of the metastore and let go of their versions; return the names of those that were there.

    They stay away until they are signalled again or asked for by force.
    """
    loaded = job.table.refresh()
    found = _named(job, loaded, PublishRequest(names=text_list(names, "names"))).names
    known = read_publications(loaded.env).get(job.target, Publication()).partitions
    unknown = [name for name in found if name not in known]
    if unknown:
        raise UserError(f"{job.target}: {unknown[0]} is not published, so it cannot be withdrawn", name=unknown[0])

    def told(publication: Publication) -> Publication:
        for name in found:
            partition = publication.partitions.get(name)
            if partition is not None and partition.stage is not Stage.WITHDRAWN:
                publication = publication.put(name, replace(partition, stage=Stage.WITHDRAWING))
        return publication

    return _withdraw_begun(job, loaded, change_publication(loaded.env, job.target, told))


def _planned(job: PublishJob, loaded: LoadedTable, asked: PublishRequest) -> PublishPlan:
    publication = read_publications(loaded.env).get(job.target, Publication())
    facts = facts_of(job, loaded, publication.span)
    return plan_publication(job.spec, publication, facts, asked, versions_of(loaded))


def _named(job: PublishJob, loaded: LoadedTable, asked: PublishRequest) -> PublishRequest:
    """Return what is asked for with whole names of partitions: a date alone, or a path of the table, is one as well."""
    if not asked.names:
        return asked
    if job.spec.partitions == "date":
        return replace(asked, names=tuple(period(job.spec, name).name for name in asked.names))
    paths = {path: c.name for c in table_partitions(job, loaded) for path in c.paths or ()}
    names = tuple(paths.get(name.strip("/"), name) for name in asked.names)
    columns = partition_columns(job, loaded)
    for name in names:
        if tuple(level.partition("=")[0] for level in name.split("/")) != columns:
            expected = "/".join(f"{column}=..." for column in columns)
            raise UserError(f"{name!r} names no partition of {job.target}; write one like {expected}", name=name)
    return replace(asked, names=names)


def _archive(job: PublishJob, loaded: LoadedTable, names: Sequence[str], engine: Engine) -> tuple[str, ...]:
    """Give partitions files of their own, one after the other; each is shown as it was until it is shown anew."""
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
                # Of a run that died, or is thought to have.
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
                    f"{job.target}: another run archives {name}; look at the state, then run again", name=name
                )
            return publication.put(name, copied)

        # From here on the copy is what is to be shown: whoever finds it so, shows it.
        shown = {name: change_publication(loaded.env, job.target, complete).partitions[name]}
        show(job, loaded, shown)
        settle(job, loaded, shown)
        done.append(name)
    return tuple(done)


def _withdraw_begun(job: PublishJob, loaded: LoadedTable, publication: Publication) -> tuple[str, ...]:
    names = sorted(name for name, p in publication.partitions.items() if p.stage is Stage.WITHDRAWING)
    if not names:
        return ()
    job.metastore.drop_partitions(job.spec.database, job.spec.table, names)
    now_ms = loaded.env.clock.now_ms()

    def told(now: Publication) -> Publication:
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

    change_publication(loaded.env, job.target, told)
    return tuple(names)


def _sweep(job: PublishJob, loaded: LoadedTable) -> None:
    """Delete what was retired long enough ago; what is left of it by a crash, the next run deletes."""
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
                logger.warning("%s: %d files in %s are not of the copy, and stay", job.target, len(left), retired.copy)
    except LakehouseError as error:
        logger.warning("%s: what is not shown any more was not deleted yet: %s", job.target, error)
        return

    def told(now: Publication) -> Publication:
        return replace(now, retired=tuple(retired for retired in now.retired if retired not in old))

    change_publication(loaded.env, job.target, told)
