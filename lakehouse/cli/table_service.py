"""The verbs `due`, `plan` and `run` of every table service.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on executors, else in threads of
this process. `run --dry-run` is not a job: it prints the same as `plan --dry-run`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lakehouse.cli.arguments import job_command, option_pairs
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.plan_views import plan_document, show_plan
from lakehouse.cli.service_job import run_service_job
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.table.services import TableService
from lakehouse.errors import UserError
from lakehouse.platform.services.registry import table_service
from lakehouse.spec.contracts.services import ScheduledPlan, ServiceCondition
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.job_flags import JOB_FLAGS
from lakehouse.spec.options.clustering import LAYOUT, PARTITIONS, SORT_COLUMNS
from lakehouse.spec.table.services import ServiceSpec, service_spec

#: Short flags of clustering, and the options that they set.
_SHORT = {"short_partitions": PARTITIONS, "sort_columns": SORT_COLUMNS, "layout": LAYOUT}
#: Flags of a job that also describe a plan.
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
        # The plan of a rewrite is printed although it is not due: it shows what a forced run would do.
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
            raise UserError("--pin works with --dry-run only: a run keeps what the table's options and readers pin")
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
