"""Record ingestion runs in the catalog, for one table or for each table of a template.

    begin               register the table, and record the start of the run
    end                 record the outcome
    record_refusal      record the failure of a run that could not begin, because its spec contradicts the table
    record_targets      record the outcome of each table of a template; a table with its first commit is registered
    record_failure      record the failure of a whole run of a template for its registered tables

An ingestion also runs if the catalog database is unavailable; a log line then reports the missing record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from lakehouse.cli.specs import author
from lakehouse.cli.table import identified
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.connect import is_configured
from lakehouse.platform.catalog.identities import DEFAULT_NAMESPACE
from lakehouse.platform.catalog.run_records import RunKey, record_end
from lakehouse.platform.ingest.databases import written_spec
from lakehouse.spark.submitted import submitted_storage_options
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus
from lakehouse.spec.table.table_spec import TableSpec

logger = logging.getLogger(__name__)
SERVICE = "ingest"


def begin(spec: TableSpec, run_id: str) -> tuple[Catalog | None, int, TableSpec]:
    """Record the table and the start of the run in the catalog, if a catalog is configured.

    An unavailable database does not stop the run.

    Returns the catalog, the id of the table's entry, and the spec with the recorded identity of its table.

    Raises:
        UserError: The spec contradicts the table or the catalog; the run is recorded as failed.
    """
    if not is_configured(os.environ):
        return None, 0, spec
    if spec.is_template:
        return None, 0, identified(spec)
    try:
        catalog = load_catalog()
        # The first commit creates the table. Creating it here would fix settings that no row has tested.
        entry = catalog.ensure_table(spec, author=author(os.environ), create=False)
        catalog.history.start(run_id, entry.id, SERVICE)
    except RetryableError as error:
        logger.warning("table %s: the run is not recorded in the catalog: %s", spec.table, error)
        return None, 0, spec
    except LakehouseError as error:
        record_refusal(spec, error, run_id)
        raise
    recorded = {} if entry.identity is None else {spec.table: entry.identity}
    return catalog, entry.id, replace(spec, identities={**spec.identities, **recorded})


def end(catalog: Catalog | None, table_id: int, run_id: str, report: IngestReport) -> None:
    """Record the outcome of a run, and close the catalog. Without a catalog, do nothing."""
    if catalog is None:
        return
    with catalog:
        try:
            record_end(catalog, RunKey(run_id=run_id, table_id=table_id, service=SERVICE), report)
        except RetryableError as error:
            logger.warning("the end of run %s is not recorded in the catalog: %s", run_id, error)


def adopt(catalog: Catalog | None, spec: TableSpec, report: IngestReport) -> None:
    """Record the identity of a table that the run created. If this fails, a later run records it."""
    if catalog is None or spec.table in spec.identities or report.status is not JobStatus.COMMITTED:
        return
    try:
        entry = catalog.entry(spec.table)
        catalog.adopt(entry, Table.open(entry.location, allowed_functions=spec.functions))
    except LakehouseError as error:
        logger.warning("table %s: its identity is not recorded in the catalog yet: %s", spec.table, error)


def record_refusal(spec: TableSpec, error: BaseException, run_id: str) -> None:
    """Record that a run failed before it began, for a registered table or for each registered table of a template."""
    if not is_configured(os.environ):
        return
    if spec.is_template:
        record_failure(spec, error, run_id)
        return
    failed = IngestReport(status=JobStatus.FAILED, table=spec.table, error=JobError.of(error))
    try:
        with load_catalog() as catalog:
            if catalog.table_exists(spec.table):
                _record(catalog, spec.table, failed, run_id)
    except LakehouseError as problem:
        logger.warning("table %s: the failed run is not recorded in the catalog: %s", spec.table, problem)


def record_targets(spec: TableSpec, report: IngestReport, run_id: str) -> None:
    """Register the tables that a run of a template wrote, so that services process them, and record their runs."""
    if not is_configured(os.environ):
        return
    storage_options = submitted_storage_options(os.environ)
    for part in report.parts:
        if part.status is JobStatus.COMMITTED:
            target = written_spec(spec, part.table, environ=os.environ, storage_options=storage_options)
            catalog, table_id, _ = begin(target, run_id)
            end(catalog, table_id, run_id, part)
    others = {part.table: part for part in report.parts if part.status is not JobStatus.COMMITTED}
    _record_registered(spec, others.get, run_id)


def record_failure(spec: TableSpec, error: BaseException, run_id: str) -> None:
    """Record that the whole run of a template failed, for each registered table of the template."""
    if is_configured(os.environ):
        failed = IngestReport(status=JobStatus.FAILED, table=spec.table, error=JobError.of(error))
        _record_registered(spec, lambda _: failed, run_id)


def _record_registered(spec: TableSpec, report_of: Callable[[str], IngestReport | None], run_id: str) -> None:
    """Record a run for each registered table of a template that has a report."""
    try:
        with load_catalog() as catalog:
            for name in _registered(catalog, spec):
                report = report_of(name)
                if report is not None:
                    _record(catalog, name, report, run_id)
    except LakehouseError as error:
        logger.warning("table %s: runs of its tables are not recorded in the catalog: %s", spec.table, error)


def _registered(catalog: Catalog, spec: TableSpec) -> Iterable[str]:
    """Return the names of a template's registered tables, including the namespace as in the reports."""
    names = catalog.identities(spec)
    default = f"{DEFAULT_NAMESPACE}."
    return [name for name in names if f"{default}{name}" in names or not name.startswith(default)]


def _record(catalog: Catalog, name: str, report: IngestReport, run_id: str) -> None:
    """Record a run of a registered table that has ended."""
    entry = catalog.entry(name)
    catalog.history.start(run_id, entry.id, SERVICE)
    record_end(catalog, RunKey(run_id=run_id, table_id=entry.id, service=SERVICE), replace(report, table=name))
