"""`lakehouse clustering due | plan | run`.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on Spark, else in threads here;
`run --dry-run` is no job and prints what `plan --dry-run` does. `--partitions`, `--sort-columns` and `--layout` are
short for the options that say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.spec.options.clustering import LAYOUT, PARTITIONS, SORT_COLUMNS

_VERBS = ("due", "plan", "run")
_DRY_RUN = "--dry-run"
_SHORT = {"--partitions": PARTITIONS, "--sort-columns": SORT_COLUMNS, "--layout": LAYOUT}


def clustering_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        known = ", ".join(_VERBS)
        raise UserError(f"lakehouse clustering {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS)}")
    rest = list(_spelled_out(words[2:]))
    if verb == "run" and _DRY_RUN not in rest:
        return run_service_job([*words[:2], *_without_output(rest)])
    return _due(rest) if verb == "due" else _plan(rest)


def _due(words: Sequence[str]) -> int:
    given = service_parser("clustering due").parse_args(words)
    due = open_table(given.table, option_pairs(given.option)).services.clustering.due()
    show({"due": due.due, "reason": due.reason, "commits": due.commits, "pending": list(due.pending)}, given.output)
    return 0


def _plan(words: Sequence[str]) -> int:
    parser = service_parser("clustering plan")
    parser.add_argument("--force", action="store_true", help="plan even if none is due")
    parser.add_argument(_DRY_RUN, action="store_true", help="print what would be planned now; write nothing")
    given = parser.parse_args(words)
    clustering = open_table(given.table, option_pairs(given.option)).services.clustering
    if given.dry_run:
        show(_groups(clustering.plan(force=True)), given.output)
        return 0
    planned = clustering.schedule(force=given.force)
    if isinstance(planned, NothingToDo):
        show({"planned": None, "reason": planned.reason}, given.output)
    else:
        show({"planned": planned.requested, "action": str(planned.action)}, given.output)
    return 0


def _groups(proposed: ClusteringPlan | NothingToDo) -> list[dict[str, Any]]:
    return [] if isinstance(proposed, NothingToDo) else [_group(group, proposed) for group in proposed.groups]


def _group(group: ClusteringGroup, proposed: ClusteringPlan) -> dict[str, Any]:
    return {
        "partition": group.partition or "(root)",
        "file groups": len(group.slices),
        "log files": sum(len(piece.log_files) for piece in group.slices),
        "becomes": group.outputs,
        "read MB": group.metrics["TOTAL_IO_READ_MB"],
        "sorted by": proposed.params.get(SORT_COLUMNS, ""),
        "such as": group.slices[0].file_id,
    }


def _spelled_out(words: Sequence[str]) -> Iterator[str]:
    """Yield the words with `--partitions a,b` and the like as the options they stand for."""
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in _SHORT:
            yield word
            continue
        given = value if equals else next(rest, None)
        if not given:
            raise UserError(f"{flag} needs a value", flag=flag)
        yield from ("--option", f"{_SHORT[flag]}={given}")


def _without_output(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a job: what it reports is JSON anyway."""
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag != "--output":
            yield word
        elif not equals:
            next(rest, None)
