"""`lakehouse sync`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import flag, options, output, table

_FORCE = "List the table instead of trusting its statistics."
COMMANDS: dict[str, click.Command] = {
    "sync": Group(
        "sync",
        "Register a table with its partitions in a Hive Metastore.",
        [
            Command(
                "plan",
                "sync:show_plan",
                "Print the differences between a table and its copy in the metastore; nothing is written.",
                [table(), flag("--force", _FORCE), options(), output()],
                examples=("lakehouse sync plan --table sales.orders",),
            ),
            Command(
                "run",
                "sync:run_sync",
                "Update the copy of a table in the metastore, as Hudi's sync does.",
                [table(), flag("--force", _FORCE), options(), output()],
                examples=("lakehouse sync run --table sales.orders",),
            ),
        ],
    )
}
