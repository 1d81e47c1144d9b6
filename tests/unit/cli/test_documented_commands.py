"""Every command line of `lakehouse` in the documentation and in the help is one that the program accepts."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator

import click

from lakehouse.cli.group import DefaultGroup, Settings
from lakehouse.cli.introspect import command_pages
from lakehouse.cli.main import program, user_error
from tests.architecture.sources import ROOT, tracked_files

_FENCE = re.compile(r"^```(?:sh|bash|shell|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:python -m )?lakehouse (?=[a-z-])(.*)$")
#: Characters of the syntax of a command, such as `[--flag]`, and of lines that a shell composes.
_SYNTAX = ("[", "…", "...", " | ", "$(", "<", "NOUN")


def documented() -> Iterator[tuple[str, str]]:
    """Yield the page and the words after `lakehouse` of each command line in a code block."""
    pages = [path for path in tracked_files() if path.endswith(".md") and "docs/_build" not in path]
    for path in pages:
        for block in _FENCE.findall((ROOT / path).read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                match = _COMMAND.match(line.strip())
                if match is not None and not any(sign in match[1] for sign in _SYNTAX):
                    yield path, match[1]


def problem(line: str) -> str | None:
    """Parse a command line without running it; return the error, None for none."""
    command = program()
    # A shell reads the words after an operator.
    words = list(itertools.takewhile(lambda word: word not in (">", "|", "&&", "||"), shlex.split(line, comments=True)))
    ctx = command.make_context("lakehouse", list(words), obj=Settings(), resilient_parsing=True)
    try:
        rest = words
        while isinstance(command, click.Group):
            if isinstance(command, DefaultGroup) and (not rest or rest[0].startswith("-")):
                command.default.make_context(command.name, list(rest))
                return None
            name, below, rest = command.resolve_command(ctx, [word for word in rest if word != "--debug"])
            if below is None:
                return f"{line}: {name or rest[0]} is unknown"
            if "--help" in rest:
                return None
            is_group = isinstance(below, click.Group)
            ctx = below.make_context(name, list(rest), parent=ctx, resilient_parsing=is_group)
            command = below
    except click.UsageError as error:
        return f"{line}: {user_error(error)}"
    return None


def test_documented_command_lines_are_accepted_by_the_program() -> None:
    lines = list(documented())
    assert len(lines) > 20
    found = {f"{path}: {wrong}" for path, line in lines if (wrong := problem(line)) is not None}
    assert found == set()


def test_examples_of_help_are_accepted_by_the_program() -> None:
    examples = [example for page in command_pages(program()) for example in page.examples]
    lines = [match[1] for example in examples if (match := _COMMAND.match(example)) is not None and "|" not in match[1]]
    assert len(lines) > 40
    assert [wrong for line in lines if (wrong := problem(line)) is not None] == []


def test_a_wrong_command_line_is_found() -> None:
    assert problem("table describe sales.orders") is not None
    assert problem("table describe --table sales.orders  # a comment") is None
    assert problem("services explain --tabel x") is not None
    assert problem("tabel list") is not None
