"""Nouns that still parse their words by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import click

from lakehouse.errors import UserError


class Words(click.Command):
    """A noun whose function gets all its words."""

    def __init__(self, name: str, runs: str, text: str) -> None:
        super().__init__(
            name,
            callback=self._call,
            params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
            help=text,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        )
        self.runs = runs

    def _call(self, words: Sequence[str]) -> int:
        module, _, function = self.runs.partition(":")
        run: Callable[[Sequence[str]], int] = getattr(import_module(f"lakehouse.cli.{module}"), function)
        try:
            return run([str(self.name), *words])
        except SystemExit as end:
            if end.code in (0, None):
                return 0
            raise UserError(f"lakehouse {self.name}: see the lines above") from None


COMMANDS: dict[str, click.Command] = {"demo": Words("demo", "demo:demo", "")}
