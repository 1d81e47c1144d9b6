"""`lakehouse compaction due | plan | run` and `lakehouse logcompaction plan | run`.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on Spark, else in threads here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest

_VERBS = {"compaction": ("due", "plan", "run"), "logcompaction": ("plan", "run")}


def compaction_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    noun, verb = words[0], words[1] if len(words) > 1 else ""
    if verb not in _VERBS[noun]:
        known = ", ".join(_VERBS[noun])
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS[noun])}")
    if verb == "run":
        return run_service_job(words)
    return _due(words[2:]) if verb == "due" else _plan(noun, words[2:])


def _due(words: Sequence[str]) -> int:
    given = service_parser("compaction due").parse_args(words)
    show(asdict(open_table(given.table, option_pairs(given.option)).services.compaction.due()), given.output)
    return 0


def _plan(noun: str, words: Sequence[str]) -> int:
    parser = service_parser(f"{noun} plan")
    parser.add_argument("--force", action="store_true", help="plan even if none is due")
    parser.add_argument("--dry-run", action="store_true", help="print what would be planned now; write nothing")
    given = parser.parse_args(words)
    service = open_table(given.table, option_pairs(given.option)).services.named(noun)
    if given.dry_run:
        planned = service.plan(force=True)
        operations = () if isinstance(planned, NothingToDo) else planned.operations
        show([_operation(asdict(operation)) for operation in operations], given.output)
        return 0
    planned = service.schedule(force=given.force)
    if isinstance(planned, NothingToDo):
        show({"planned": None, "reason": planned.reason}, given.output)
    else:
        show({"planned": planned.requested, "action": str(planned.action)}, given.output)
    return 0


def _operation(fields: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {name: round(value, 3) for name, value in fields["metrics"].items()}
    return {
        "partition": fields["partition"] or "(root)",
        "file group": fields["file_id"],
        "base file": fields["data_file"],
        "log files": len(fields["log_files"]),
        **metrics,
    }
