"""`lakehouse rollback run | failed`, `lakehouse savepoint create | delete | list` and `lakehouse restore run`."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.model.commit import RollbackPlan
from lakehouse.model.restore import Savepoint
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.contracts.undo import (
    FailedWritesResult,
    RestoreResult,
    RevertedWrite,
    RollbackResult,
    SavepointDeletion,
    SavepointInfo,
    SavepointResult,
    Savepoints,
)


def undo_command(words: Sequence[str]) -> int:
    """Run `rollback`, `savepoint` or `restore`."""
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
    parser.add_argument("--force", action="store_true", help="roll back even if the writer is active")
    given = parser.parse_args(words)
    outcome = open_table(given.table).rollback(given.instant, dry_run=given.dry_run, force=given.force)
    if isinstance(outcome, NothingToDo):
        result = RollbackResult(dry_run=given.dry_run, target=None, reason=outcome.reason)
    else:
        files = tuple(_files([outcome]))
        result = RollbackResult(dry_run=given.dry_run, target=outcome.target, action=str(outcome.action), files=files)
    show_document(result, given.output)
    return 0


def _failed(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--dry-run", action="store_true", help="print what would be rolled back; change nothing")
    given = parser.parse_args(words)
    outcome = open_table(given.table).rollback_failed(dry_run=given.dry_run)
    result = FailedWritesResult(
        dry_run=given.dry_run,
        rolled_back=tuple(outcome.rolled_back),
        active=tuple(outcome.alive),
        refused=tuple(outcome.refused),
    )
    show_document(result, given.output)
    return 0


def _create(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--instant", help="a completed write; default the newest")
    parser.add_argument("--user", help="author; default: the user of the operating system")
    parser.add_argument("--comment", default="", help="reason for the savepoint")
    parser.add_argument("--dry-run", action="store_true", help="print what would be kept; write nothing")
    given = parser.parse_args(words)
    user = given.user if given.user is not None else _user()
    outcome = open_table(given.table).savepoint(given.instant, user=user, comment=given.comment, dry_run=given.dry_run)
    if isinstance(outcome, NothingToDo):
        result = SavepointResult(dry_run=given.dry_run, savepoint=None, reason=outcome.reason)
    else:
        result = SavepointResult(dry_run=given.dry_run, savepoint=_info(outcome))
    show_document(result, given.output)
    return 0


def _delete(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--instant", required=True)
    parser.add_argument("--dry-run", action="store_true", help="check that it exists; delete nothing")
    given = parser.parse_args(words)
    instant = open_table(given.table).delete_savepoint(given.instant, dry_run=given.dry_run)
    show_document(SavepointDeletion(dry_run=given.dry_run, instant=instant.requested), given.output)
    return 0


def _list(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    given = parser.parse_args(words)
    found = Savepoints(savepoints=tuple(map(_info, open_table(given.table).savepoints())))
    show_document(found, given.output, rows=[encode(savepoint) for savepoint in found.savepoints])
    return 0


def _restore(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    parser.add_argument("--to", required=True, metavar="INSTANT", help="a savepoint, or any completed write")
    parser.add_argument("--dry-run", action="store_true", help="print what would be rolled back; change nothing")
    parser.add_argument("--force", action="store_true", help="roll back writes even if their writers are active")
    given = parser.parse_args(words)
    outcome = open_table(given.table).restore(given.to, dry_run=given.dry_run, force=given.force)
    if isinstance(outcome, NothingToDo):
        result = RestoreResult(dry_run=given.dry_run, target=None, reason=outcome.reason)
    else:
        result = RestoreResult(
            dry_run=given.dry_run,
            target=outcome.target,
            instant=None if outcome.instant is None else outcome.instant.requested,
            reverted=tuple(
                RevertedWrite(instant=plan.target, action=str(plan.action), files=len(_files([plan])))
                for plan in outcome.rollbacks
            ),
        )
    show_document(result, given.output)
    return 0


def _files(plans: Iterable[RollbackPlan]) -> list[str]:
    return [path for plan in plans for request in plan.requests for path in request.files]


def _info(savepoint: Savepoint) -> SavepointInfo:
    metadata = savepoint.metadata
    return SavepointInfo(
        instant=savepoint.requested,
        at=f"{datetime.fromtimestamp(metadata.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        by=metadata.user,
        comment=metadata.comment,
        partitions=len(metadata.files),
        files=sum(map(len, metadata.files.values())),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The user id of a container may have no name.
        return ""


_VERBS: dict[str, dict[str, Callable[[argparse.ArgumentParser, Sequence[str]], int]]] = {
    "rollback": {"run": _rollback, "failed": _failed},
    "savepoint": {"create": _create, "delete": _delete, "list": _list},
    "restore": {"run": _restore},
}
