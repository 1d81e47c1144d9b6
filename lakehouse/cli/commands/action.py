"""`lakehouse action`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import NAME_TEXT, Count, catalog, output, table, value
from lakehouse.spec.actions import ACTIONS

_RUN = Command(
    "run",
    "actions:run_action",
    "Run an action that a user requested, or record a new one and run it.\n\n\b\nActions and their parameters:\n"
    + "\n".join(f"{spec.name:<16} {', '.join((*spec.required, *spec.optional))}" for spec in ACTIONS if spec.by_dag),
    [
        value("--id", "Number of a recorded action.", type=Count(1)),
        table(NAME_TEXT, required=False),
        value("--action", "Kind of a new action.", metavar="NAME"),
        value("--set", "A parameter of a new action; repeatable.", metavar="NAME=VALUE", multiple=True),
        catalog(),
        output(),
    ],
    examples=(
        "lakehouse action run --id 17",
        "lakehouse action run --table sales.orders --action rollback_failed",
    ),
)
_LIST = Command(
    "list",
    "actions:list_actions",
    "List the newest actions of users.",
    [
        table("Only the actions on this table, namespace.table.", required=False),
        value("--limit", "Maximum number of actions.", type=Count(1), default=50),
        catalog(),
        output(),
    ],
    examples=("lakehouse action list --table sales.orders",),
)
COMMANDS: dict[str, click.Command] = {
    "action": Group("action", "Run the actions that users request on pages, and list them.", [_RUN, _LIST])
}
