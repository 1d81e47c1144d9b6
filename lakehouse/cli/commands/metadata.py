"""`lakehouse metadata`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import options, output, table

COMMANDS: dict[str, click.Command] = {
    "metadata": Group(
        "metadata",
        "Show, validate and rebuild the metadata table of a table.",
        [
            Command(
                "show",
                "metadata:show",
                "Print the partitions of the metadata table with their sizes, and the parts that readers use.",
                [table(), options(), output()],
                examples=("lakehouse metadata show --table sales.orders",),
            ),
            Command(
                "validate",
                "metadata:validate",
                "Compare the metadata table with the storage listing, the file footers and the rows; nothing is "
                "written. The exit "
                "code of differences is that of a corrupt table.",
                [table(), options(), output()],
                examples=("lakehouse metadata validate --table sales.orders --output json",),
            ),
            Command(
                "rebuild",
                "metadata:rebuild",
                "Drop the metadata table if it exists, and rebuild it from a storage listing, unless "
                "hoodie.metadata.enable=false. Writers wait "
                "before they commit.",
                [table(), options(), output()],
                examples=("lakehouse metadata rebuild --table sales.orders",),
            ),
        ],
    )
}
