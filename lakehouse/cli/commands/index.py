"""`lakehouse index`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import options, output, table

FILTERS = Group(
    "filters",
    "Check and build the bloom filters in the footers of base files.",
    [
        Command(
            "check",
            "filters:check",
            "List the base files without a bloom filter; nothing is written.",
            [table(), options(), output()],
            examples=("lakehouse index filters check --table sales.orders",),
        ),
        Command(
            "build",
            "filters:build",
            "Add missing bloom filters to base files, in one commit.",
            [table(), options(), output()],
            examples=("lakehouse index filters build --table sales.orders",),
        ),
    ],
)
COMMANDS: dict[str, click.Command] = {
    "index": Group("index", "Check and build the bloom filters of base files.", [FILTERS])
}
