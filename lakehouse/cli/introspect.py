"""Lists all commands with their help texts and flags, without running them. The generated reference uses it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from lakehouse.cli.group import DefaultGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPage:
    """A flag or argument of a command.

    Attributes:
        flags: Its spellings, such as `--table`; for an argument, its name.
        value: Form of its value; empty if the flag has no value.
        text: Its help text.
        default: Its default as a string; empty if it has none.
        required: Whether the command needs it.
        repeatable: Whether it can be given several times.
    """

    flags: tuple[str, ...]
    value: str
    text: str
    default: str
    required: bool
    repeatable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPage:
    """A group or a command of the command line.

    Attributes:
        path: The words after `lakehouse`, such as `("table", "read")`; empty for the program.
        text: Its full help text.
        is_group: Whether a verb must follow.
        usage: Line that shows its syntax.
        examples: Command lines that users can copy.
        parameters: Its flags, without `--help`.
    """

    path: tuple[str, ...]
    text: str
    is_group: bool
    usage: str
    examples: tuple[str, ...]
    parameters: tuple[ParameterPage, ...]


def command_pages(program: click.Command) -> Iterator[CommandPage]:
    """Yield the program, its groups and all their commands, in the order of the help."""
    yield from _pages(program, click.Context(program, info_name="lakehouse"))


def _pages(command: click.Command, ctx: click.Context) -> Iterator[CommandPage]:
    yield CommandPage(
        path=tuple(ctx.command_path.split()[1:]),
        text=command.help or "",
        is_group=isinstance(command, click.Group) and not isinstance(command, DefaultGroup),
        usage=command.get_usage(ctx).removeprefix("Usage: "),
        examples=getattr(command, "examples", ()),
        parameters=tuple(_parameter(parameter, ctx) for parameter in command.params if not _is_hidden(parameter)),
    )
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(ctx):
        below = command.get_command(ctx, name)
        if below is not None and not below.hidden:
            yield from _pages(below, click.Context(below, parent=ctx, info_name=name))


def _parameter(parameter: click.Parameter, ctx: click.Context) -> ParameterPage:
    is_option = isinstance(parameter, click.Option)
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    default = "" if is_flag else parameter.to_info_dict()["default"]
    return ParameterPage(
        flags=tuple(parameter.opts) if is_option else (parameter.human_readable_name,),
        value="" if is_flag else _metavar(parameter, ctx),
        text=getattr(parameter, "help", None) or "",
        default=str(default) if isinstance(default, str | int | float) else "",
        required=parameter.required,
        repeatable=getattr(parameter, "repeatable", parameter.multiple),
    )


def _metavar(parameter: click.Parameter, ctx: click.Context) -> str:
    # Since click 8.2 the method takes the context.
    takes_context = "ctx" in inspect.signature(click.Parameter.make_metavar).parameters
    return parameter.make_metavar(*((ctx,) if takes_context else ()))


def _is_hidden(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden
