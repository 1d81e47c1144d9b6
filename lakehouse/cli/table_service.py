"""`lakehouse <service> due | plan | run`, for every ServiceSpec.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on executors, else in threads of
this process. `run --dry-run` is not a job: it prints the same as `plan --dry-run`.

Modules of single services add verbs (`clean orphans`, `ttl policy`) and short flags (`clustering --sort-columns`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.clean import orphans_command
from lakehouse.cli.clustering import expand_short_flags
from lakehouse.cli.output import show_document
from lakehouse.cli.plan_views import plan_document, rows_of_rewrite
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.cli.ttl import policy_command
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.table.services import TableService
from lakehouse.errors import UserError, nearest
from lakehouse.spec.contracts.services import ScheduledPlan, ServiceCondition
from lakehouse.spec.services import ServiceSpec, service_spec

VERBS = ("due", "plan", "run")
_MORE_VERBS: dict[tuple[str, str], Callable[[Sequence[str]], int]] = {
    ("clean", "orphans"): orphans_command,
    ("ttl", "policy"): policy_command,
}
_DRY_RUN = "--dry-run"


def service_command(words: Sequence[str]) -> int:
    """Run `lakehouse <service> <verb> ...` and return the exit code."""
    spec, verb = service_spec(words[0]), words[1] if len(words) > 1 else ""
    verbs = (*VERBS, *(more for service, more in _MORE_VERBS if service == spec.name))
    if verb not in verbs:
        raise UserError(
            f"lakehouse {spec.name} {verb!r} is unknown; verbs are {', '.join(verbs)}.{nearest(verb, verbs)}"
        )
    if (spec.name, verb) in _MORE_VERBS:
        return _MORE_VERBS[spec.name, verb](words[2:])
    rest = list(expand_short_flags(words[2:]) if spec.name == "clustering" else words[2:])
    if verb == "run" and _DRY_RUN not in rest:
        return run_service_job([spec.name, verb, *rest])
    return _due(spec, rest) if verb == "due" else _plan(spec, verb, rest)


def _due(spec: ServiceSpec, words: Sequence[str]) -> int:
    given = _parser(spec, "due").parse_args(words)
    condition = _service(spec, given).due(pinned=_pins(spec, given))
    inputs = {field.name: getattr(condition, field.name) for field in fields(condition)}
    due, reason = inputs.pop("due"), inputs.pop("reason")
    show_document(ServiceCondition(service=spec.name, due=due, reason=reason, inputs=inputs), given.output)
    return 0


def _plan(spec: ServiceSpec, verb: str, words: Sequence[str]) -> int:
    parser = _parser(spec, verb)
    force = "plan although the service is not due" if spec.name != "ttl" else "list the table to rebuild its statistics"
    parser.add_argument("--force", action="store_true", help=force)
    parser.add_argument(_DRY_RUN, action="store_true", help="print the plan; write nothing")
    given = parser.parse_args(words)
    service, pinned = _service(spec, given), _pins(spec, given)
    if given.dry_run or spec.action is None:
        # The plan of a rewrite is printed although it is not due: it shows what a forced run would do.
        plan = service.plan(force=given.force or spec.holds_file_groups, pinned=pinned)
        document = plan_document(plan, spec.name)
        show_document(document, given.output, rows=rows_of_rewrite(document))
        return 0
    planned = service.schedule(force=given.force, pinned=pinned)
    if isinstance(planned, NothingToDo):
        result = ScheduledPlan(service=spec.name, instant=None, code=planned.code, reason=planned.reason)
    else:
        result = ScheduledPlan(service=spec.name, instant=planned.requested, action=str(planned.action))
    show_document(result, given.output)
    return 0


def _service(spec: ServiceSpec, given: argparse.Namespace) -> TableService[Any, Any, Any]:
    return open_table(given.table, option_pairs(given.option)).services.named(spec.name)


def _pins(spec: ServiceSpec, given: argparse.Namespace) -> list[str]:
    return list(given.pin) if spec.takes_pins else []


def _parser(spec: ServiceSpec, verb: str) -> argparse.ArgumentParser:
    parser = service_parser(f"{spec.name} {verb}")
    if spec.takes_pins:
        kept = "PARTITION" if spec.operation is not None else "INSTANT"
        parser.add_argument("--pin", action="append", default=[], metavar=kept, help="keep it; may be repeated")
    return parser
