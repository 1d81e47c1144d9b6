"""The verbs `due`, `plan` and `run` of every table service.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on executors, otherwise in threads
of this process. `run --dry-run` is not a job: it prints the same as `plan --dry-run`.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any

from lakehouse.cli.arguments import job_command, option_pairs
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.plan_views import plan_document, show_plan
from lakehouse.cli.specs import specs_in_force, with_warning
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.table.services import TableService
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.table_names import full_name
from lakehouse.platform.jobs.report import print_report
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.services.check import check_service
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.registry import table_service
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.service_run import run_service, runner
from lakehouse.spark.session import job_session
from lakehouse.spec.command_check import check_command
from lakehouse.spec.contracts.job import ServiceReport, combined
from lakehouse.spec.contracts.services import ScheduledPlan, ServiceCondition
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.job_flags import JOB_FLAGS
from lakehouse.spec.options.clustering import LAYOUT, PARTITIONS, SORT_COLUMNS
from lakehouse.spec.table.services import ServiceSpec, service_spec

#: Short flags for clustering, each with the option that it sets.
_SHORT = {"short_partitions": PARTITIONS, "sort_columns": SORT_COLUMNS, "layout": LAYOUT}
#: Job flags that `run --dry-run` also accepts.
_OF_PLANS = ("tables", "options", "force", "output", "debug")


def due(given: Given) -> None:
    """Print whether a service is due, and the inputs of the decision."""
    spec = service_spec(given.noun)
    condition = _service(spec, given).due(pinned=list(given.pin))
    inputs = {field.name: getattr(condition, field.name) for field in fields(condition)}
    is_due, reason = inputs.pop("due"), inputs.pop("reason")
    show_document(ServiceCondition(service=spec.name, due=is_due, reason=reason, inputs=inputs), given.output)


def plan(given: Given) -> None:
    """Schedule the plan of a service, or print it."""
    spec = service_spec(given.noun)
    service, pinned = _service(spec, given), list(given.pin)
    if given.dry_run or spec.action is None:
        # The plan of a rewrite is printed even if it is not due, because it shows the work of a forced run.
        planned = service.plan(force=given.force or spec.holds_file_groups, pinned=pinned)
        show_plan(plan_document(planned, spec.name), given.output)
        return
    scheduled = service.schedule(force=given.force, pinned=pinned)
    if isinstance(scheduled, NothingToDo):
        result = ScheduledPlan(service=spec.name, instant=None, code=scheduled.code, reason=scheduled.reason)
    else:
        result = ScheduledPlan(service=spec.name, instant=scheduled.requested, action=str(scheduled.action))
    show_document(result, given.output)


def run(given: Given) -> int:
    """Run a service as a job, or print its plan with `--dry-run`."""
    if not given.dry_run:
        if given.pin:
            raise UserError(
                "--pin works with --dry-run only: a run keeps the versions that the table's options and readers pin"
            )
        return run_service_job(job_command(given, ServiceCommand, _short_options(given)))
    useless = [flag.flag for flag in JOB_FLAGS if flag.field not in _OF_PLANS and getattr(given, flag.field)]
    if useless or len(given.tables) > 1:
        wrong = f"{useless[0]} has no effect" if useless else "it takes one --table"
        raise UserError(f"lakehouse {given.noun} run --dry-run prints the plan of one table: {wrong}; leave it out")
    plan(
        Given(
            **{**vars(given), "table": given.tables[0], "output": (*given.output, "text")[0]},
            option=option_pairs(given.options),
        )
    )
    return 0


def _service(spec: ServiceSpec, given: Given) -> TableService[Any, Any, Any]:
    options = {**given.option, **option_pairs(_short_options(given))}
    return table_service(open_table(given.table, options).services, spec.name)


def _short_options(given: Given) -> list[str]:
    values = {name: getattr(given, name, None) for name in _SHORT}
    empty = next((name for name, text in values.items() if text == ""), None)
    if empty is not None:
        flag = f"--{empty.removeprefix('short_').replace('_', '-')}"
        raise UserError(f"{flag} needs a value; leave it out to keep the table's setting", flag=flag)
    return [f"{_SHORT[name]}={text}" for name, text in values.items() if text is not None]


def run_service_job(command: ServiceCommand) -> int:
    """Run a service: on Spark under spark-submit, otherwise in threads of this process."""
    return run_job(command, _work, check_service_job)


def _work(command: ServiceCommand) -> ServiceReport:
    check_service_job(command)
    names = [catalog_name(table) for table in command.tables]
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse {command.verb} {', '.join(command.tables)[:100]}") if submitted else None
    identifiers = [name for name in names if name is not None]
    if not identifiers:
        report = run_service(command.verb, open_table(command.table, command.options), command, spark)
    else:
        with load_catalog(identifiers[0][0]) as catalog, metrics() as measures:
            tables = [table for _, table in identifiers]
            drift = specs_in_force(catalog, tables)
            reports = run_tables(catalog, tables, command, runner(command.verb, spark), measures)
            reports = tuple(
                with_warning(report, drift.get(full_name(table))) for table, report in zip(tables, reports, strict=True)
            )
        report = reports[0] if len(reports) == 1 else combined(reports)
    report = replace(report, interval=command.interval_name)
    print_report(command, report)
    return report


def check_service_job(command: ServiceCommand) -> tuple[str, ...]:
    """Check a table service; raise UserError if it cannot run on the table.

    If there are several tables, only their names and the options are checked. A wrong table does not stop the others,
    and its report contains the error.
    """
    check_command(command, os.environ)
    if len(command.tables) == 1:
        check_service(_opened(command), command)
        return ()
    names = {table: catalog_name(table) for table in command.tables}
    unknown = next((table for table, name in names.items() if name is None), None)
    if unknown is not None:
        raise UserError(f"several tables in one run must be catalog names, but {unknown!r} is not", table=unknown)
    catalogs = sorted({name[0] for name in names.values() if name is not None})
    if len(catalogs) > 1:
        raise UserError(f"the tables of one run must be in one catalog, not in {', '.join(catalogs)}")
    return ()


def _opened(command: ServiceCommand) -> Table:
    identifier = catalog_name(command.table)
    if identifier is None:
        return open_table(command.table, command.options)
    with load_catalog(identifier[0]) as catalog:
        # The run also applies the spec file. A check of the previous spec would report errors that are already
        # corrected.
        specs_in_force(catalog, [identifier[1]])
        return catalog.load_table(identifier[1], options=command.options)
