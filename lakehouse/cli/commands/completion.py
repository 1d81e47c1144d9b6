"""`lakehouse completion`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group

_INSTALL = {
    "bash": 'eval "$(lakehouse completion bash)"          # one line of ~/.bashrc',
    "zsh": 'eval "$(lakehouse completion zsh)"           # one line of ~/.zshrc, below compinit',
    "fish": "lakehouse completion fish > ~/.config/fish/completions/lakehouse.fish",
}


def _command(shell: str) -> click.Command:
    return Command(
        shell,
        f"completion:print_{shell}",
        f"Print the completion script of {shell}.\n\nThe shell then completes nouns, verbs, flags, tables of the "
        "catalog, services and option keys.",
        examples=(_INSTALL[shell],),
    )


COMMANDS: dict[str, click.Command] = {
    "completion": Group(
        "completion",
        "Print the script that completes commands, flags, table names, services and option keys in a shell.",
        [_command(shell) for shell in _INSTALL],
    )
}
