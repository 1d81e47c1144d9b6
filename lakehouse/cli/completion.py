"""`lakehouse completion`: print the script for shell completion of `lakehouse`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lakehouse.cli.group import Given

#: Environment variable that the completion script sets to request completions from `lakehouse`.
VARIABLE = "_LAKEHOUSE_COMPLETE"


def print_bash(_: Given) -> None:
    """Print the completion script of bash."""
    _print("bash")


def print_zsh(_: Given) -> None:
    """Print the completion script of zsh."""
    _print("zsh")


def print_fish(_: Given) -> None:
    """Print the completion script of fish."""
    _print("fish")


def _print(name: str) -> None:
    shell = get_completion_class(name)
    assert shell is not None, f"click has no completion for {name}"
    click.echo(shell(click.Command("lakehouse"), {}, "lakehouse", VARIABLE).source())
