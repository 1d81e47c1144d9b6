"""The job of `lakehouse publish run`: open the publication of a table, run it once, and report the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lakehouse.core.planning.event_time import milliseconds
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.services import engine_of
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.publications import read_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import Publication, PublishedPartition
from lakehouse.platform.jobs.lineage import publication_lineage, with_lineage
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import PublishReport, run
from lakehouse.spec.contracts.job import JobReason, JobStatus, PublicationReport
from lakehouse.spec.job_command import PublishCommand
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.publish import PublishSpec
from lakehouse.spec.table.table_spec import TableSpec


def require_publication(spec: TableSpec, name: str) -> PublishSpec:
    """Return the publication that a spec declares; raise UserError if it declares none. `name` is for the message."""
    declared = spec.publication()
    if declared is None:
        raise UserError(f"{name}: its spec has no section services.publish; add one to publish its partitions")
    return declared


def open_publication(table: Table, spec: TableSpec, options: Mapping[str, str]) -> PublishJob:
    """Open the publication of a table; the caller closes its metastore.

    Args:
        table: The table.
        spec: The spec of the table, which declares the publication.
        options: Options of this run only.

    Raises:
        UserError: The spec declares no publication, or no metastore is configured.
    """
    declared = require_publication(spec, spec.table)
    policies = parse_options({**spec.call_options(), **options})
    return PublishJob(
        table=table,
        policies=policies,
        spec=declared,
        metastore=open_metastore(
            policies.sync, purpose=f"services.publish of {declared.target}", override=declared.metastore
        ),
        place=open_storage(_place(declared, table)),
    )


def request_of(command: PublishCommand) -> PublishRequest:
    """Return the partitions and the versions that a command requests."""
    interval = command.interval
    return PublishRequest(
        names=command.partitions,
        interval_ms=None if interval is None else (milliseconds(interval[0]), milliseconds(interval[1])),
        force=command.force,
        ended=interval is not None,
        newest=command.newest,
        archive=command.archive_now,
    )


def run_publication(job: PublishJob, table: str, command: PublishCommand, spark: Any = None) -> PublicationReport:
    """Publish the partitions that are ready, once, and report the result.

    Args:
        job: The publication.
        table: The name of the table in its spec, for the lineage.
        command: The command of the run.
        spark: The Spark session that copies files; None to copy in threads of this process.
    """
    result = run(job, request_of(command), engine=None if command.pointers_only else engine_of(spark, job.policies))
    report = replace(_report(job, result), interval=command.interval_name)
    metastore = job.metastore.name.partition(",")[0]
    return with_lineage(
        report,
        lambda: publication_lineage(job.table, table, metastore, job.target, _partitions(job, report.partitions)),
    )


def _place(spec: PublishSpec, table: Table) -> str:
    """Return the location of archived partitions: from the spec, or else a folder next to the table."""
    if spec.location:
        return resolve(spec.location, os.environ, name="services.publish.location")
    return f"{table.location.rstrip('/')}_published/{spec.target}"


def _report(job: PublishJob, result: PublishReport) -> PublicationReport:
    changed = {
        "published": result.published,
        "archived": result.archived,
        "repaired": result.repaired,
        "withdrawn": result.withdrawn,
    }
    missed = {"lost": ", ".join(result.lost), "older than max_age": str(result.expired or "")}
    counts = [f"{len(names)} {change}" for change, names in changed.items() if names]
    skipped = [f"{problem}: {names}" for problem, names in missed.items() if names]
    return PublicationReport(
        status=JobStatus.COMMITTED if result.did_something else JobStatus.NOTHING_TO_DO,
        table=job.table.name,
        partitions=tuple(sorted({*result.published, *result.archived})),
        reason="; ".join([*(counts or [f"{result.waiting} partitions wait"]), *skipped]),
        code=JobReason.NONE if result.did_something else JobReason.NOTHING_READY,
    )


def _partitions(job: PublishJob, names: Iterable[str]) -> tuple[PublishedPartition, ...]:
    """Return the named partitions as the publication stores them."""
    stored = read_publications(job.table.refresh().env).get(job.target, Publication()).partitions
    return tuple(stored[name] for name in names if name in stored)
