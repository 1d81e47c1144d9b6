"""Groups and commands of the command line, built on click.

A declaration contains the name of the command's function, such as `table:read` for `lakehouse.cli.table.read`. The
function's module is imported when the command runs, so help, shell completion and usage errors never import Spark or
Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import click

from lakehouse.errors import nearest

#: Commands of earlier releases, each with its replacement.
_REMOVED = {"demo": "the demo is not in the package; run `make demo` in a clone of the project"}
_CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}


class Given(SimpleNamespace):
    """Flag values of a command, by flag name with underscores."""


@dataclass(slots=True)
class Settings:
    """Settings for one call of the program. `debug` prints the traceback of an error."""

    debug: bool = False


def debug_option() -> click.Option:
    """Return the flag `--debug`, which is accepted before and after the verb."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_debug,
        help="Print the traceback of an error.",
    )


class Command(click.Command):
    """A verb of the command line: its flags, help, examples, and the function that runs it.

    The function receives the flag values, the `fixed` values of the declaration, and `debug`.
    """

    # parameters: the parts of a declaration
    def __init__(
        self,
        name: str,
        runs: str,
        text: str,
        parameters: Iterable[click.Parameter] = (),
        *,
        examples: Sequence[str] = (),
        **fixed: Any,
    ) -> None:
        super().__init__(
            name,
            callback=self._call,
            params=[*parameters, debug_option()],
            help=text,
            short_help=first_sentence(text),
            context_settings=dict(_CONTEXT),
        )
        self.runs = runs
        self.examples = tuple(examples)
        self.fixed = fixed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after the verb; raise UsageError for words that are not flags."""
        ctx.allow_extra_args = True
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            # Errors from click's parser do not always contain their command.
            error.ctx = error.ctx or ctx
            if isinstance(error, click.MissingParameter) and given and not given[0].startswith("-"):
                raise self._unexpected(given[0], ctx) from None
            raise
        if rest and not ctx.resilient_parsing:
            raise self._unexpected(rest[0], ctx)
        return rest

    def _unexpected(self, word: str, ctx: click.Context) -> click.UsageError:
        has_table = any("--table" in parameter.opts for parameter in self.params)
        names = [one.human_readable_name for one in self.params if isinstance(one, click.Argument)]
        advice = f"this command takes {' and '.join(names)}, and flags" if names else "this command takes flags only"
        advice = f"give the table by a flag: --table {word}" if has_table else advice
        return click.UsageError(f"unexpected argument {word!r}; {advice}", ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the flags."""
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)

    def _call(self, **values: Any) -> int:
        module, _, function = self.runs.partition(":")
        run: Callable[[Given], int | None] = getattr(import_module(f"lakehouse.cli.{module}"), function)
        settings = click.get_current_context().find_object(Settings)
        return run(Given(**values, **self.fixed, debug=settings is not None and settings.debug)) or 0


class Group(click.Group):
    """A noun of the command line: the group of its verbs. The error for an unknown verb suggests a similar one."""

    command_class = Command

    def __init__(self, name: str, text: str, commands: Sequence[click.Command] = ()) -> None:
        super().__init__(
            name,
            commands=commands,
            help=text,
            short_help=first_sentence(text),
            subcommand_metavar="VERB [OPTIONS]",
            options_metavar="",
            # The callback reports a missing verb.
            invoke_without_command=True,
            callback=self._verb_is_missing,
            params=[debug_option()],
            context_settings=dict(_CONTEXT),
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in declaration order."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command for a verb; raise UsageError for an unknown verb."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            verbs = self.list_commands(ctx)
            raise click.UsageError(f"{name!r} is unknown; verbs are {', '.join(verbs)}.{nearest(name, verbs)}", ctx)
        return super().resolve_command(ctx, args)

    def _verb_is_missing(self) -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            raise click.UsageError(f"a verb is missing; verbs are {', '.join(self.list_commands(ctx))}", ctx)


class DefaultGroup(Group):
    """A noun that is a command itself, and has verbs: without a verb the command `default` runs."""

    def __init__(self, default: Command, commands: Sequence[click.Command]) -> None:
        super().__init__(str(default.name), str(default.help), commands)
        self.default = default
        self.examples = default.examples
        self.params = list(default.params)
        self.subcommand_metavar = "[VERB] [OPTIONS]"
        self.callback = self._run_without_verb

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of the command below the flags."""
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)

    def _run_without_verb(self, **values: Any) -> int:
        ctx = click.get_current_context()
        assert self.default.callback is not None, "a command has a callback"
        return 0 if ctx.invoked_subcommand else int(self.default.callback(**values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A noun of the command line.

    Attributes:
        module: Module below `lakehouse.cli.commands` whose mapping `COMMANDS` contains the noun.
        text: One sentence for the list of commands.
        section: Heading of the list of commands.
    """

    module: str
    text: str
    section: str


class MainGroup(click.Group):
    """The program. Its nouns are a static table; the module of a noun is imported when the noun is used."""

    def __init__(self, name: str, text: str, nouns: Mapping[str, Noun], parameters: Sequence[click.Parameter]) -> None:
        super().__init__(
            name,
            help=text,
            subcommand_metavar="COMMAND [VERB] [OPTIONS]",
            options_metavar="",
            invoke_without_command=True,
            callback=_help_without_command,
            params=[*parameters, debug_option()],
            context_settings=dict(_CONTEXT),
        )
        self.nouns = nouns

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the nouns."""
        return list(self.nouns)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a noun, and return its group or command. Return None for an unknown noun."""
        noun = self.nouns.get(cmd_name)
        if noun is None:
            return None
        commands: Mapping[str, click.Command] = import_module(f"lakehouse.cli.commands.{noun.module}").COMMANDS
        return commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the group or command for a noun; raise UsageError for an unknown noun."""
        if args[0] in _REMOVED:
            raise click.UsageError(f"the command {args[0]!r} was removed: {_REMOVED[args[0]]}", ctx)
        if args[0] not in self.nouns and not ctx.resilient_parsing:
            raise click.UsageError(
                f"unknown command {args[0]!r}.{nearest(args[0], self.nouns)} `lakehouse --help` lists the commands.",
                ctx,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the nouns by section, each with its sentence. Their modules are not imported."""
        width = max(map(len, self.nouns))
        for section in dict.fromkeys(noun.section for noun in self.nouns.values()):
            with formatter.section(section):
                rows = [(name.ljust(width), n.text) for name, n in self.nouns.items() if n.section == section]
                formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text, without its period."""
    return text.partition("\n\n")[0].partition(". ")[0].replace("\n", " ").removesuffix(".")


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write example command lines unwrapped, below a heading."""
    if examples:
        with formatter.section("Examples" if len(examples) > 1 else "Example"):
            for example in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    settings = ctx.find_object(Settings)
    if value and settings is not None:
        settings.debug = True


def _help_without_command() -> None:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
