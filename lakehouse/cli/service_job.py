"""`lakehouse <service> run`: one table, or several of a catalog in one process."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from lakehouse.cli.job_check import check_service_job
from lakehouse.cli.specs import specs_in_force, with_warning
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.table_names import full_name
from lakehouse.platform.jobs.report import print_report
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.service_run import run_service, runner
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.job import ServiceReport, combined
from lakehouse.spec.job_command import ServiceCommand

logger = logging.getLogger(__name__)


def run_service_job(command: ServiceCommand) -> int:
    """Run a service; under spark-submit on Spark, else in threads of this process."""
    return run_job(command, _work, check_service_job)


def _work(command: ServiceCommand) -> ServiceReport:
    check_service_job(command)
    names = [catalog_name(table) for table in command.tables]
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse {command.verb} {', '.join(command.tables)[:100]}") if submitted else None
    known = [name for name in names if name is not None]
    if not known:
        report = run_service(command.verb, open_table(command.table, command.options), command, spark)
    else:
        with load_catalog(known[0][0]) as catalog, metrics() as measures:
            tables = [table for _, table in known]
            drift = specs_in_force(catalog, tables)
            reports = run_tables(catalog, tables, command, runner(command.verb, spark), measures)
            reports = tuple(
                with_warning(report, drift.get(full_name(table))) for table, report in zip(tables, reports, strict=True)
            )
        report = reports[0] if len(reports) == 1 else combined(reports)
    report = replace(report, interval=command.interval_name)
    print_report(command, report)
    return report
