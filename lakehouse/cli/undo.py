"""`lakehouse rollback run | failed`, `lakehouse savepoint create | delete | list` and `lakehouse restore run`."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from datetime import UTC, datetime

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
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


def roll_back(given: Given) -> None:
    """Roll back one write."""
    outcome = open_table(given.table).rollback(given.instant, dry_run=given.dry_run, force=given.force)
    if isinstance(outcome, NothingToDo):
        result = RollbackResult(dry_run=given.dry_run, target=None, reason=outcome.reason)
    else:
        files = tuple(_files([outcome]))
        result = RollbackResult(dry_run=given.dry_run, target=outcome.target, action=str(outcome.action), files=files)
    show_document(result, given.output)


def roll_back_failed(given: Given) -> None:
    """Roll back all failed writes."""
    outcome = open_table(given.table).rollback_failed(dry_run=given.dry_run)
    result = FailedWritesResult(
        dry_run=given.dry_run,
        rolled_back=tuple(outcome.rolled_back),
        active=tuple(outcome.alive),
        refused=tuple(outcome.refused),
    )
    show_document(result, given.output)


def create_savepoint(given: Given) -> None:
    """Create a savepoint."""
    user = given.user if given.user is not None else _user()
    outcome = open_table(given.table).savepoint(given.instant, user=user, comment=given.comment, dry_run=given.dry_run)
    if isinstance(outcome, NothingToDo):
        result = SavepointResult(dry_run=given.dry_run, savepoint=None, reason=outcome.reason)
    else:
        result = SavepointResult(dry_run=given.dry_run, savepoint=_info(outcome))
    show_document(result, given.output)


def delete_savepoint(given: Given) -> None:
    """Delete a savepoint."""
    instant = open_table(given.table).delete_savepoint(given.instant, dry_run=given.dry_run)
    show_document(SavepointDeletion(dry_run=given.dry_run, instant=instant.requested), given.output)


def list_savepoints(given: Given) -> None:
    """Print the savepoints of a table."""
    document = Savepoints(savepoints=tuple(map(_info, open_table(given.table).savepoints())))
    show_document(document, given.output, rows=[encode(savepoint) for savepoint in document.savepoints])


def restore(given: Given) -> None:
    """Roll back all writes after a savepoint or commit."""
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
        # In a container, the user id may have no user name.
        return ""
