"""The page of the command line."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generators.markdown import code, page, table
from lakehouse.cli.introspect import CommandPage, ParameterPage, command_pages
from lakehouse.cli.main import program

_INTRO = """\
`lakehouse NOUN VERB --help` prints the same text. Every error is one paragraph without a traceback unless `--debug` is
given, and [the exit code](exit-codes.md) says what a caller does."""


def commands_page() -> str:
    """Return the page with every command, its flags and its examples."""
    root, *commands = command_pages(program())
    parts = [_INTRO, _flags(root.parameters)]
    for command in commands:
        parts += _command(command)
    return page("Command line", "lakehouse/cli", *parts)


def _command(command: CommandPage) -> Iterator[str]:
    yield f"{'#' * (len(command.path) + 1)} lakehouse {' '.join(command.path)}"
    if command.text:
        yield _escaped(command.text.strip())
    if command.is_group:
        return
    yield f"```text\n{command.usage}\n```"
    if command.parameters:
        yield _flags(command.parameters)
    if command.examples:
        yield "```text\n" + "\n".join(command.examples) + "\n```"


def _flags(parameters: tuple[ParameterPage, ...]) -> str:
    rows = [
        (", ".join(map(code, flag.flags)), code(flag.value), flag.default or "–", _meaning(flag)) for flag in parameters
    ]
    return table(("flag", "value", "default", "meaning"), rows)


def _meaning(flag: ParameterPage) -> str:
    notes = [note for note, holds in (("Required.", flag.required), ("Repeatable.", flag.repeatable)) if holds]
    return _escaped(" ".join((flag.text, *notes)).strip())


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")
