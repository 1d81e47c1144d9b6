"""`lakehouse publish`: `run` is a job, the other verbs need no Spark.

The table is given as a spec file or as a catalog name. The spec declares the publication in the section
`services.publish`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from lakehouse.cli.arguments import job_command
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.specs import specs_in_force
from lakehouse.cli.table import catalog_name, open_table, spec_of
from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.jobs.report import print_report
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.publish.check import check_publication
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_job import (
    open_publication,
    request_of,
    require_publication,
    run_publication,
)
from lakehouse.platform.publish.publication_plan import PublishPlan, PublishRequest, iso
from lakehouse.platform.publish.run import due, run, signal, withdraw
from lakehouse.platform.publish.status import status
from lakehouse.spark.session import job_session
from lakehouse.spec.command_check import check_command, check_declared
from lakehouse.spec.contracts.job import PublicationReport
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
from lakehouse.spec.job_command import PublishCommand
from lakehouse.spec.table.table_spec import TableSpec

logger = logging.getLogger(__name__)


def publish(given: Given) -> int:
    """Publish the partitions that are ready, as a job."""
    return run_job(job_command(given, PublishCommand), _work, _check)


def _work(command: PublishCommand) -> PublicationReport:
    clock = SystemClock()
    started_s = clock.monotonic_s()
    spec, warning = declared_spec(command.table)
    check_declared(spec, command, os.environ)
    job = opened(command.table, command.options, spec=spec)
    with closing(job.metastore):
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if submitted:
            check_publication(job)
        spark = job_session(f"lakehouse publish {job.target}") if submitted else None
        report = run_publication(job, spec.table, command, spark)
    report = replace(report, seconds=clock.monotonic_s() - started_s, warning=warning)
    print_report(command, report)
    return report


def _check(command: PublishCommand) -> tuple[str, ...]:
    check_command(command, os.environ)
    spec, _ = declared_spec(command.table)
    check_declared(spec, command, os.environ)
    job = opened(command.table, command.options, spec=spec)
    with closing(job.metastore):
        check_publication(job)
    return ()


def declared_spec(name: str) -> tuple[TableSpec, str]:
    """Load a spec from a file or a catalog.

    The second value is a warning if the catalog's spec differs from its file.
    """
    spec = spec_of(name)
    if spec is not None:
        return spec, ""
    identifier = catalog_name(name)
    if identifier is None:
        raise UserError(
            f"{name}: publication needs a table spec, or the name of a table in a catalog, because services.publish "
            "declares it"
        )
    with load_catalog(identifier[0]) as catalog:
        warning = "; ".join(specs_in_force(catalog, [identifier[1]]).values())
        if warning:
            logger.warning("%s: %s", name, warning)
        return catalog.entry(identifier[1]).spec, warning


def opened(name: str, options: Mapping[str, str], *, spec: TableSpec | None = None) -> PublishJob:
    """Open a table and its publication; raise UserError if its spec declares no publication."""
    declared = spec or declared_spec(name)[0]
    require_publication(declared, name)
    return open_publication(open_table(name, options), declared, options)


def show_due(given: Given) -> None:
    """Print which partitions a run would publish."""
    job = opened(given.table, given.option)
    plan = due(job, _request(given))
    document = PublicationDue(
        target=job.target,
        publish=tuple(planned.name for planned in plan.publish),
        archive=plan.archive,
        begun=plan.begun,
        waiting=len(plan.waiting),
        lost=plan.lost,
        expired=len(plan.missed) - len(plan.lost),
    )
    show_document(document, given.output)


def show_plan(given: Given) -> None:
    """Print the action of a run for every partition, and the reason."""
    job = opened(given.table, given.option)
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
    """Print the publication state of partitions."""
    job = opened(given.table, given.option)
    document = PublicationStatus(target=job.target, partitions=status(job, given.partition))
    show_document(document, given.output, rows=[_status_row(partition) for partition in document.partitions])


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
    job = opened(given.table, given.option)
    names = signal(job, given.partition)
    published = run(job, PublishRequest(names=names)).published if given.run else ()
    show_document(SignalResult(ready=names, published=published), given.output)


def withdraw_partitions(given: Given) -> None:
    """Withdraw partitions from the metastore."""
    job = opened(given.table, given.option)
    show_document(WithdrawResult(withdrawn=withdraw(job, given.partition)), given.output)


def _request(given: Given) -> PublishRequest:
    return request_of(
        PublishCommand(
            table=given.table,
            partitions=tuple(given.partition),
            interval_start=given.interval_start,
            interval_end=given.interval_end,
            force=given.force,
            newest=given.newest,
        )
    )
