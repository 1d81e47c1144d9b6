"""`lakehouse clean due | plan | run | orphans`.

`due`, `plan` and `orphans` work without Spark. `run` is a job: under spark-submit files are deleted by executors, else
by threads here; `run --dry-run` is no job and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.model.clean import CleanPlan

_VERBS = ("due", "plan", "run", "orphans")
_DRY_RUN = "--dry-run"


def clean_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        raise UserError(f"lakehouse clean {verb!r} is unknown; verbs are {', '.join(_VERBS)}.{nearest(verb, _VERBS)}")
    if verb == "run" and _DRY_RUN not in words:
        return run_service_job(words)
    return {"due": _due, "plan": _plan, "run": _plan, "orphans": _orphans}[verb](words[2:])


def _due(words: Sequence[str]) -> int:
    given = service_parser("clean due").parse_args(words)
    show(asdict(open_table(given.table, option_pairs(given.option)).services.clean.due()), given.output)
    return 0


def _plan(words: Sequence[str]) -> int:
    parser = service_parser("clean plan")
    parser.add_argument("--force", action="store_true", help="plan even if none is due")
    parser.add_argument(_DRY_RUN, action="store_true", help="print what would be removed; write and remove nothing")
    given = parser.parse_args(words)
    clean = open_table(given.table, option_pairs(given.option)).services.clean
    planned = clean.plan(force=given.force) if given.dry_run else clean.schedule(force=given.force)
    if isinstance(planned, NothingToDo):
        show({"planned": None, "reason": planned.reason}, given.output)
    elif isinstance(planned, CleanPlan):
        show(_shown(planned), given.output)
    else:
        show({"planned": planned.requested, "action": str(planned.action)}, given.output)
    return 0


def _shown(planned: CleanPlan) -> dict[str, object]:
    partitions = [
        {
            "partition": partition or "(root)",
            "files": len(paths),
            "partition goes": partition in planned.partitions_to_delete,
            "such as": paths[-1].rpartition("/")[2],
        }
        for partition, paths in planned.files.items()
    ]
    earliest = None if planned.earliest is None else planned.earliest.requested
    head = {"policy": planned.policy, "earliest retained": earliest, "would remove": len(planned.paths)}
    return {**head, "partitions": partitions}


def _orphans(words: Sequence[str]) -> int:
    parser = service_parser("clean orphans")
    parser.add_argument("--delete", action="store_true", help="delete them; look at them first")
    parser.add_argument(_DRY_RUN, action="store_true", help="print them and delete nothing; so it is by default")
    given = parser.parse_args(words)
    remove = given.delete and not given.dry_run
    found = open_table(given.table, option_pairs(given.option)).services.orphans(remove=remove)
    rows = [
        {
            "file": orphan.path,
            "bytes": orphan.size_bytes,
            "modified": f"{datetime.fromtimestamp(orphan.modified_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
            "why": orphan.reason,
        }
        for orphan in found
    ]
    size = sum(orphan.size_bytes for orphan in found)
    show({"removed" if remove else "would remove": len(found), "bytes": size, "orphans": rows}, given.output)
    return 0
