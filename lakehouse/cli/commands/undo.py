"""`lakehouse rollback`, `lakehouse savepoint` and `lakehouse restore`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import flag, output, table, value

_RUN = Command(
    "run",
    "undo:roll_back",
    "Roll back one write: a pending write, or the newest completed write.",
    [
        table(),
        value("--instant", "Instant of the write.", required=True, metavar="INSTANT"),
        flag("--dry-run", "Print the files that would be deleted, and delete nothing."),
        flag("--force", "Roll back even if the writer is active."),
        output(),
    ],
    examples=("lakehouse rollback run --table sales.orders --instant 20260131120000000 --dry-run",),
)
_FAILED = Command(
    "failed",
    "undo:roll_back_failed",
    "Roll back all writes whose writers failed.",
    [table(), flag("--dry-run", "Print the writes that would be rolled back, and change nothing."), output()],
    examples=("lakehouse rollback failed --table sales.orders",),
)
_CREATE = Command(
    "create",
    "undo:create_savepoint",
    "Create a savepoint: clean and rollback keep its commit and all its files.",
    [
        table(),
        value("--instant", "A completed write. Default: the newest.", metavar="INSTANT"),
        value("--user", "Author of the savepoint. Default: the user of the operating system.", metavar="NAME"),
        value("--comment", "Reason for the savepoint.", default=""),
        flag("--dry-run", "Print the files that would be kept, and write nothing."),
        output(),
    ],
    examples=('lakehouse savepoint create --table sales.orders --comment "before the migration"',),
)
_DELETE = Command(
    "delete",
    "undo:delete_savepoint",
    "Delete a savepoint; clean may then remove its files.",
    [
        table(),
        value("--instant", "Instant of the savepoint.", required=True, metavar="INSTANT"),
        flag("--dry-run", "Check that the savepoint exists and delete nothing."),
        output(),
    ],
    examples=("lakehouse savepoint delete --table sales.orders --instant 20260131120000000",),
)
_LIST = Command(
    "list",
    "undo:list_savepoints",
    "List the savepoints of a table.",
    [table(), output()],
    examples=("lakehouse savepoint list --table sales.orders",),
)
_RESTORE = Command(
    "run",
    "undo:restore",
    "Restore the state of a savepoint or commit by rolling back all later writes.",
    [
        table(),
        value("--to", "A savepoint, or any completed write.", required=True, metavar="INSTANT"),
        flag("--dry-run", "Print the writes that would be rolled back, and change nothing."),
        flag("--force", "Roll back writes even if their writers are active."),
        output(),
    ],
    examples=("lakehouse restore run --table sales.orders --to 20260131120000000 --dry-run",),
)
COMMANDS: dict[str, click.Command] = {
    "rollback": Group("rollback", "Roll back one write, or all failed writes.", [_RUN, _FAILED]),
    "savepoint": Group("savepoint", "Mark commits that clean and rollback must keep.", [_CREATE, _DELETE, _LIST]),
    "restore": Group("restore", "Roll back all writes after a savepoint or commit.", [_RESTORE]),
}
