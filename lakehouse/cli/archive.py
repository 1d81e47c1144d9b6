"""`lakehouse archive due | plan | run`: old actions leave the timeline. No Spark is needed for any of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.model.instant import Instant

_VERBS = ("due", "plan", "run")


def archive_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        raise UserError(f"lakehouse archive {verb!r} is unknown; verbs are {', '.join(_VERBS)}.{nearest(verb, _VERBS)}")
    if verb == "run" and "--dry-run" not in words:
        return run_service_job(_job_words(words))
    return _due(words[2:]) if verb == "due" else _plan(verb, words[2:])


def _job_words(words: Sequence[str]) -> list[str]:
    """Return the words of a job: what it says on the way is text, its report (`--report`) is JSON."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--output", choices=("text", "json"))
    return parser.parse_known_args(list(words))[1]


def _due(words: Sequence[str]) -> int:
    given = service_parser("archive due").parse_args(words)
    show(asdict(open_table(given.table, option_pairs(given.option)).services.archive.due()), given.output)
    return 0


def _plan(verb: str, words: Sequence[str]) -> int:
    parser = service_parser(f"archive {verb}")
    parser.add_argument("--force", action="store_true", help="all but hoodie.keep.min.commits, even if none is due")
    parser.add_argument("--dry-run", action="store_true", help="print what would be archived; change nothing")
    given = parser.parse_args(words)
    found = open_table(given.table, option_pairs(given.option)).services.archive.plan(force=given.force)
    if isinstance(found, NothingToDo):
        show({"would archive": [], "reason": found.reason}, given.output)
    else:
        show({"would archive": rows_of(found.instants), "stays": found.kept}, given.output)
    return 0


def rows_of(instants: Iterable[Instant]) -> list[dict[str, Any]]:
    """Return instants as a person reads them."""
    return [{"requested": i.requested, "completed": i.completed, "action": str(i.action)} for i in instants]
