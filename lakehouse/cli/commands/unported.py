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
        runs = "validate:validate_command" if self.name == "table" and words[:1] == ("validate",) else self.runs
        module, _, function = runs.partition(":")
        run: Callable[[Sequence[str]], int] = getattr(import_module(f"lakehouse.cli.{module}"), function)
        try:
            return run([str(self.name), *words])
        except SystemExit as end:
            if end.code in (0, None):
                return 0
            raise UserError(f"lakehouse {self.name}: see the lines above") from None


_SERVICE = "table_service:service_command"
_RUNS = {
    "table": "table:table_command",
    "timeline": "table:table_command",
    "ingest": "ingest:ingest",
    "rollback": "undo:undo_command",
    "savepoint": "undo:undo_command",
    "restore": "undo:undo_command",
    **dict.fromkeys(("compaction", "logcompaction", "clustering", "clean", "ttl", "archive"), _SERVICE),
    "index": "index:index_command",
    "publish": "publish:publish_command",
    "sync": "sync:sync_command",
    "services": "services:services_command",
    "policy": "catalog:catalog_command",
    "catalog": "catalog:catalog_command",
    "demo": "demo:demo",
}
COMMANDS: dict[str, click.Command] = {name: Words(name, runs, "") for name, runs in _RUNS.items()}
