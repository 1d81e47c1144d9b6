"""`lakehouse rollback run | failed`, `lakehouse savepoint create | delete | list` and `lakehouse restore run`."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lakehouse.cli.output import show
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.model.commit import RollbackPlan
from lakehouse.model.restore import Savepoint


def undo_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    noun, verb = words[0], words[1] if len(words) > 1 else ""
    verbs = _VERBS[noun]
    if verb not in verbs:
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {', '.join(verbs)}.{nearest(verb, verbs)}")
    parser = argparse.ArgumentParser(prog=f"lakehouse {noun} {verb}")
    parser.add_argument("--table", required=True, help="a table spec (YAML), or a table's location")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return verbs[verb](parser, words[2:])


def _rollback(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--instant", required=True, help="a pending write, or the newest completed one")
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted; delete nothing")
    parser.add_argument("--force", action="store_true", help="roll back even if the writer is alive")
    given = parser.parse_args(words)
    outcome = open_table(given.table).rollback(given.instant, dry_run=given.dry_run, force=given.force)
    if isinstance(outcome, NothingToDo):
        show({"rolled back": None, "reason": outcome.reason}, given.output)
        return 0
    done = "would roll back" if given.dry_run else "rolled back"
    show({done: outcome.target, "action": outcome.action, "files": _files([outcome])}, given.output)
    return 0


def _failed(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--dry-run", action="store_true", help="print what would be rolled back; change nothing")
    given = parser.parse_args(words)
    outcome = open_table(given.table).rollback_failed(dry_run=given.dry_run)
    done = "would roll back" if given.dry_run else "rolled back"
    told = {done: list(outcome.rolled_back), "left to living writers": list(outcome.alive)}
    if outcome.refused:
        told["left, for their markers name what must not be deleted"] = list(outcome.refused)
    show(told, given.output)
    return 0


def _create(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--instant", help="a completed write; default the newest")
    parser.add_argument("--user", help="who makes it; default who you are to the system")
    parser.add_argument("--comment", default="", help="why")
    parser.add_argument("--dry-run", action="store_true", help="print what would be kept; write nothing")
    given = parser.parse_args(words)
    user = given.user if given.user is not None else _user()
    outcome = open_table(given.table).savepoint(given.instant, user=user, comment=given.comment, dry_run=given.dry_run)
    if isinstance(outcome, NothingToDo):
        show({"savepoint": None, "reason": outcome.reason}, given.output)
    else:
        show(_shown(outcome), given.output)
    return 0


def _delete(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--instant", required=True)
    parser.add_argument("--dry-run", action="store_true", help="look whether it is there; delete nothing")
    given = parser.parse_args(words)
    instant = open_table(given.table).delete_savepoint(given.instant, dry_run=given.dry_run)
    show({"would delete" if given.dry_run else "deleted": instant.requested}, given.output)
    return 0


def _list(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    given = parser.parse_args(words)
    show([_shown(savepoint) for savepoint in open_table(given.table).savepoints()], given.output)
    return 0


def _restore(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--to", required=True, metavar="INSTANT", help="a savepoint, or any completed write")
    parser.add_argument("--dry-run", action="store_true", help="print what would be undone; undo nothing")
    parser.add_argument("--force", action="store_true", help="undo writes even if their writers are alive")
    given = parser.parse_args(words)
    outcome = open_table(given.table).restore(given.to, dry_run=given.dry_run, force=given.force)
    if isinstance(outcome, NothingToDo):
        show({"restored to": None, "reason": outcome.reason}, given.output)
        return 0
    undone = [
        {"instant": plan.target, "action": plan.action, "files": len(_files([plan]))} for plan in outcome.rollbacks
    ]
    head = {"would restore to" if given.dry_run else "restored to": outcome.target}
    instant = {} if outcome.instant is None else {"instant": outcome.instant.requested}
    show({**head, **instant, "undone": undone}, given.output)
    return 0


def _files(plans: Iterable[RollbackPlan]) -> list[str]:
    return [path for plan in plans for request in plan.requests for path in request.files]


def _shown(savepoint: Savepoint) -> Mapping[str, Any]:
    metadata = savepoint.metadata
    return {
        "savepoint": savepoint.requested,
        "at": f"{datetime.fromtimestamp(metadata.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        "by": metadata.user,
        "comment": metadata.comment,
        "partitions": len(metadata.files),
        "files": sum(map(len, metadata.files.values())),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        return ""


_VERBS: dict[str, dict[str, Callable[[argparse.ArgumentParser, Sequence[str]], int]]] = {
    "rollback": {"run": _rollback, "failed": _failed},
    "savepoint": {"create": _create, "delete": _delete, "list": _list},
    "restore": {"run": _restore},
}
