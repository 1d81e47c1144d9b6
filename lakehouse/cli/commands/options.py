"""`lakehouse options`."""

from __future__ import annotations

import click

from lakehouse.cli import parameters
from lakehouse.cli.group import Command

COMMANDS: dict[str, click.Command] = {
    "options": Command(
        "options",
        "options:show_options",
        "List every option with its default.",
        [
            parameters.flag("--markdown", "Print the options as the Markdown table of the documentation."),
            parameters.output(),
        ],
        examples=("lakehouse options | grep -A1 compact",),
    )
}
