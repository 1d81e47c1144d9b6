"""`lakehouse publish`: `run` is a job, the other verbs need no Spark.

The table is a spec file or a name in a catalog. Its publication is declared in the section `services.publish`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from lakehouse.cli.arguments import job_command
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.specs import specs_in_force
from lakehouse.cli.table import catalog_name, open_table, spec_of
from lakehouse.core.planning.event_time import milliseconds
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.services import engine_of
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.publications import read_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import Publication, PublishedPartition
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.jobs.lineage import publication_lineage, with_lineage
from lakehouse.platform.jobs.report import print_report
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.check import check_publication
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishPlan, PublishRequest, iso
from lakehouse.platform.publish.run import due, run, signal, withdraw
from lakehouse.platform.publish.status import status
from lakehouse.spark.session import job_session
from lakehouse.spec.command_check import check_command, check_declared
from lakehouse.spec.contracts.job import JobCommand, JobReason, JobReport, JobStatus
from lakehouse.spec.contracts.publication import (
    PartitionState,
    PartitionStatus,
    PublicationDue,
    PublicationPreview,
    PublicationStatus,
    SignalResult,
    Visibility,
    WithdrawResult,
)
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.publish import PublishSpec
from lakehouse.spec.table.table_spec import TableSpec

logger = logging.getLogger(__name__)


def run_publication(given: Given) -> int:
    """Publish the partitions that are ready, as a job."""
    return run_job(job_command(given), lambda command: _work(command, given), _check)


def declared_spec(name: str) -> tuple[TableSpec, str]:
    """Return the spec of a file or of a catalog, and a warning if the catalog's spec differs from its file."""
    spec = spec_of(name)
    if spec is not None:
        return spec, ""
    known = catalog_name(name)
    if known is None:
        raise UserError(
            f"{name}: publication needs a table spec, or the name of a table in a catalog, because services.publish "
            "declares it"
        )
    with load_catalog(known[0]) as catalog:
        warning = "; ".join(specs_in_force(catalog, [known[1]]).values())
        if warning:
            logger.warning("%s: %s", name, warning)
        return catalog.entry(known[1]).spec, warning


def open_publication(name: str, options: dict[str, str], *, spec: TableSpec | None = None) -> PublishJob:
    """Open a table and its publication; raise UserError if its spec does not declare one."""
    spec = spec or declared_spec(name)[0]
    declared = spec.publication()
    if declared is None:
        raise UserError(f"{name}: its spec has no section services.publish; add one to publish its partitions")
    policies = parse_options({**spec.call_options(), **options})
    table = open_table(name, options)
    return PublishJob(
        table=table,
        policies=policies,
        spec=declared,
        metastore=open_metastore(
            policies.sync, purpose=f"services.publish of {declared.target}", override=declared.metastore
        ),
        place=open_storage(_place(declared, table)),
    )


def _place(spec: PublishSpec, table: Table) -> str:
    """Return the location of archived partitions: from the spec, or else a folder beside the table."""
    if spec.location:
        return resolve(spec.location, os.environ, name="services.publish.location")
    return f"{table.location.rstrip('/')}_published/{spec.target}"


def _check(command: JobCommand) -> tuple[str, ...]:
    check_command(command, os.environ)
    spec, _ = declared_spec(command.table)
    check_declared(spec, command, os.environ)
    job = open_publication(command.table, dict(command.options), spec=spec)
    with closing(job.metastore):
        check_publication(job)
    return ()


def _work(command: JobCommand, given: Given) -> JobReport:
    clock = SystemClock()
    started = clock.monotonic_s()
    spec, warning = declared_spec(command.table)
    check_declared(spec, command, os.environ)
    job = open_publication(command.table, dict(command.options), spec=spec)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        check_publication(job)
    spark = job_session(f"lakehouse publish {job.target}") if submitted else None
    interval = command.interval
    request = PublishRequest(
        names=command.partitions,
        interval_ms=None if interval is None else (milliseconds(interval[0]), milliseconds(interval[1])),
        force=command.force,
        ended=interval is not None,
        newest=given.newest,
        archive=given.archive_now,
    )
    policies: Policies = job.policies
    try:
        done = run(job, request, engine=None if given.pointers_only else engine_of(spark, policies))
    finally:
        job.metastore.close()
    names = tuple(sorted({*done.published, *done.archived}))
    changed = {
        "published": done.published,
        "archived": done.archived,
        "repaired": done.repaired,
        "withdrawn": done.withdrawn,
    }
    missed = {"lost": ", ".join(done.lost), "older than max_age": str(done.expired or "")}
    skipped = [f"{what}: {names}" for what, names in missed.items() if names]
    found = [f"{len(names)} {what}" for what, names in changed.items() if names] or [f"{done.waiting} partitions wait"]
    report = JobReport(
        status=JobStatus.COMMITTED if done.did_something else JobStatus.NOTHING_TO_DO,
        table=job.table.name,
        partitions=names,
        reason="; ".join([*found, *skipped]),
        code=JobReason.NONE if done.did_something else JobReason.NOTHING_READY,
        seconds=clock.monotonic_s() - started,
        interval=command.interval_name,
        warning=warning,
    )
    metastore = job.metastore.name.partition(",")[0]
    report = with_lineage(
        report, lambda: publication_lineage(job.table, spec.table, metastore, job.target, _partitions(job, names))
    )
    print_report(command, report)
    return report


def _partitions(job: PublishJob, names: Iterable[str]) -> tuple[PublishedPartition, ...]:
    """Return the named partitions as the publication stores them."""
    stored = read_publications(job.table.refresh().env).get(job.target, Publication()).partitions
    return tuple(stored[name] for name in names if name in stored)


def show_due(given: Given) -> None:
    """Print which partitions a run would publish."""
    job = open_publication(given.table, given.option)
    plan = due(job, _request(given))
    found = PublicationDue(
        target=job.target,
        publish=tuple(planned.name for planned in plan.publish),
        archive=plan.archive,
        begun=plan.begun,
        waiting=len(plan.waiting),
        lost=plan.lost,
        expired=len(plan.missed) - len(plan.lost),
    )
    show_document(found, given.output)


def show_plan(given: Given) -> None:
    """Print what a run would do with every partition, and why."""
    job = open_publication(given.table, given.option)
    plan = due(job, _request(given))
    rows = [{"partition": name, "would be": "continued", "version": "", "why": "begun"} for name in plan.begun]
    rows += [
        {"partition": p.name, "would be": "published", "version": p.version.instant, "why": p.reason}
        for p in plan.publish
    ]
    rows += [{"partition": n, "would be": "archived", "version": "", "why": "old enough"} for n in plan.archive]
    rows += [{"partition": w.name, "would be": "-", "version": "", "why": w.reason} for w in plan.waiting]
    rows += [{"partition": m.name, "would be": m.state, "version": "", "why": m.reason} for m in plan.missed]
    show_document(_preview(job.target, plan), given.output, rows=rows)


def _preview(target: str, plan: PublishPlan) -> PublicationPreview:
    return PublicationPreview(
        target=target,
        begun=plan.begun,
        publish=tuple(
            PartitionStatus(
                partition=planned.name,
                state=PartitionState.READY,
                code=planned.code,
                reason=planned.reason,
                instant=planned.version.instant,
                event_time=_iso(planned.event_time_ms),
            )
            for planned in plan.publish
        ),
        archive=plan.archive,
        waiting=tuple(
            PartitionStatus(
                partition=waiting.name,
                state=PartitionState.WAITING,
                code=waiting.code,
                reason=waiting.reason,
                event_time=_iso(waiting.end_ms),
                lag_s=None if waiting.lag_ms is None else waiting.lag_ms / 1000,
            )
            for waiting in plan.waiting
        ),
        missed=tuple(
            PartitionStatus(
                partition=missed.name,
                state=missed.state,
                code=missed.code,
                reason=missed.reason,
                event_time=_iso(missed.end_ms),
            )
            for missed in plan.missed
        ),
    )


def _iso(ms: int | None) -> str:
    return "" if ms is None else iso(ms)


def show_status(given: Given) -> None:
    """Print the state of partitions."""
    job = open_publication(given.table, given.option)
    found = PublicationStatus(target=job.target, partitions=status(job, given.partition))
    show_document(found, given.output, rows=[_status_row(partition) for partition in found.partitions])


def _status_row(partition: PartitionStatus) -> dict[str, Any]:
    seen = {
        Visibility.NOTHING: "nothing",
        Visibility.PUBLISHED_VERSION: f"version {partition.visible_version}",
        Visibility.OTHER: f"another: {partition.visible_version}",
    }
    return {
        "partition": partition.partition,
        "state": partition.state,
        "version": partition.instant,
        "event time": partition.event_time,
        "published": partition.published,
        "lag, s": partition.lag_s,
        "files": partition.files,
        "bytes": partition.size_bytes,
        "seen": seen[partition.visibility],
        "why": partition.reason,
    }


def signal_ready(given: Given) -> None:
    """Signal that partitions are ready, and publish them with `--run`."""
    job = open_publication(given.table, given.option)
    names = signal(job, given.partition)
    published = run(job, PublishRequest(names=names)).published if given.run else ()
    show_document(SignalResult(ready=names, published=published), given.output)


def withdraw_partitions(given: Given) -> None:
    """Withdraw partitions from the metastore."""
    job = open_publication(given.table, given.option)
    show_document(WithdrawResult(withdrawn=withdraw(job, given.partition)), given.output)


def _request(given: Given) -> PublishRequest:
    command = JobCommand(
        verb="publish",
        action="plan",
        table=given.table,
        interval_start=given.interval_start,
        interval_end=given.interval_end,
    )
    request = PublishRequest(names=tuple(given.partition), force=given.force, newest=given.newest)
    if command.interval is None:
        return request
    return replace(
        request, interval_ms=(milliseconds(command.interval[0]), milliseconds(command.interval[1])), ended=True
    )
