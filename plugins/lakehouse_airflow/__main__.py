"""Command line of this package for Airflow versions without commands of providers: `python -m lakehouse_airflow setup`.

It has the commands of `airflow lakehouse`, with the same arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lakehouse_airflow.setup_command import commands


def main(words: Sequence[str]) -> None:
    """Run a command."""
    (group,) = commands()
    parser = argparse.ArgumentParser(prog="python -m lakehouse_airflow", description=group.help)
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in group.subcommands:
        action = actions.add_parser(command.name, help=command.help, description=command.description)
        for argument in command.args:
            action.add_argument(*argument.flags, **{k: v for k, v in argument.kwargs.items() if v is not None})
        action.set_defaults(run=command.func)
    arguments = parser.parse_args(words)
    arguments.run(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
