"""Flags that many commands share, and the types of their values. The module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from lakehouse.cli.arguments import catalog_argument, option_pairs
from lakehouse.errors import nearest
from lakehouse.spec.job_command import JobCommand, field_names
from lakehouse.spec.job_flags import ALL_FLAGS, JOB_FLAGS, FlagForm, JobFlag
from lakehouse.spec.options.declarations import declarations
from lakehouse.spec.table.services import SERVICES

TABLE_TEXT = "A table spec (YAML), a table's location, or [catalog:]namespace.table."
NAME_TEXT = "Name of a catalog table: namespace.table."


class OneOf(click.ParamType):  # type: ignore[type-arg]
    """A value from a list of words.

    The error for another word suggests a similar one. `aliases` are accepted, too.
    """

    name = "word"

    def __init__(self, words: Sequence[str], aliases: Mapping[str, str] | None = None) -> None:
        self.words, self.aliases = tuple(words), aliases or {}

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the words in the format of the help."""
        return f"[{'|'.join(self.words)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or fail if it is unknown."""
        value = self.aliases.get(str(value).upper(), value)
        if value not in self.words:
            near = nearest(str(value), self.words)
            self.fail(f"{value!r} is not one of {', '.join(self.words)}.{near}", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin with the typed characters."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class Count(click.ParamType):  # type: ignore[type-arg]
    """A whole number with a lower bound. The word `all`, if allowed, gives None."""

    name = "number"

    def __init__(self, least: int, *, allow_all: bool = False) -> None:
        self.least, self.allow_all = least, allow_all

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, or fail if the value is not a number or is below the bound."""
        if self.allow_all and value == "all":
            return None
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number{self._or_all()}.", param, ctx)
        if number < self.least:
            self.fail(f"{number} is too small; give {self.least} or more{self._or_all()}.", param, ctx)
        return number

    def _or_all(self) -> str:
        return ", or `all`" if self.allow_all else ""


class TableName(click.ParamType):  # type: ignore[type-arg]
    """Name of a table. The shell completes tables of the default catalog, and file names."""

    name = "table"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return catalog tables whose names begin with the typed characters, and let the shell add file names."""
        names = import_module("lakehouse.cli.table_names").table_names(ctx.params.get("catalog"))
        matches = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*matches, CompletionItem(incomplete, type="file")]


class CatalogName(click.ParamType):  # type: ignore[type-arg]
    """The name or URL of a catalog."""

    name = "catalog"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value; raise UserError if it is a URL with a password."""
        return catalog_argument(str(value))


class KeyValue(click.ParamType):  # type: ignore[type-arg]
    """A `hoodie.*` option as `KEY=VALUE`; the shell completes the key."""

    name = "KEY=VALUE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the keys that begin with the typed characters."""
        keys = [str(declared["key"]) for declared in declarations()]
        return [CompletionItem(f"{key}=") for key in keys if key.startswith(incomplete)]


class DescribedArgument(click.Argument):
    """A positional argument that may be missing, with a sentence for the reference; click itself has none."""

    def __init__(self, name: str, text: str, *, metavar: str) -> None:
        super().__init__([name], required=False, metavar=metavar)
        self.help = text


def table(text: str = TABLE_TEXT, *, required: bool = True) -> click.Option:
    """Return the flag `--table`, the only way to name a table."""
    return click.Option(["--table"], type=TableName(), metavar="TABLE", required=required, help=text)


def tables(text: str) -> click.Option:
    """Return the flag `--table` for a command that takes several tables."""
    return click.Option(["--table"], type=TableName(), metavar="TABLE", multiple=True, help=text)


def catalog(text: str = "Name or URL of the catalog.", *, default: str | None = "default") -> click.Option:
    """Return the flag `--catalog`."""
    return click.Option(["--catalog"], type=CatalogName(), metavar="NAME|URL", default=default, help=text)


def options(text: str = "A hoodie.* option for this call; repeatable. `lakehouse options` lists them.") -> click.Option:
    """Return the flag `--option KEY=VALUE`, whose value is a mapping."""
    return click.Option(
        ["--option", "option"],
        type=KeyValue(),
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda ctx, parameter, value: option_pairs(value),
        help=text,
    )


def output() -> click.Option:
    """Return the flag `--output`."""
    return click.Option(
        ["--output"],
        type=OneOf(("text", "json")),
        default="text",
        help="Text for people, or the JSON of a documented contract for programs.",
    )


def services(text: str = "A table service; repeatable. Default: all.") -> click.Option:
    """Return the flag `--service` for a command that takes several services."""
    return click.Option(["--service"], type=OneOf(SERVICES), multiple=True, help=text)


def service(text: str = "The table service.") -> click.Option:
    """Return the flag `--service` for a command that takes one service."""
    return click.Option(["--service"], type=OneOf(SERVICES), required=True, help=text)


def flag(name: str, text: str) -> click.Option:
    """Return a flag without a value."""
    return click.Option([name], is_flag=True, help=text)


def value(name: str, text: str, *, also: Sequence[str] = (), **more: Any) -> click.Option:
    """Return a flag with a value. `also` are additional spellings; `more` are parameters of `click.Option`."""
    # Help shows no empty default. The first spelling gives the command's field its name.
    field = name.lstrip("-").replace("-", "_")
    return click.Option([name, *also, field], help=text, show_default=more.get("default", "") != "", **more)


class JobOption(click.Option):
    """A flag of a job. It collects all values, because the command decoder reports a flag that is given twice."""

    def __init__(self, declarations: Sequence[str], *, repeatable: bool, **more: Any) -> None:
        super().__init__(declarations, **more)
        self.repeatable = repeatable


def job_flags(kind: type[JobCommand], *, without: Sequence[str] = ()) -> list[click.Parameter]:
    """Return the flags of a job.

    Help hides the flags of other jobs and the flags in `without`, but the parser accepts them.
    """
    names = {*field_names(kind), "tables"}
    # Every command has --debug.
    flags = [flag for flag in ALL_FLAGS if flag.flag != "--debug" and (flag in JOB_FLAGS or flag.field in names)]
    return [_job_flag(flag, hidden=flag.field not in names or flag.flag in without) for flag in flags]


def _job_flag(job_flag: JobFlag, *, hidden: bool) -> click.Option:
    types: dict[str, click.ParamType] = {  # type: ignore[type-arg]
        "--table": TableName(),
        "--option": KeyValue(),
        "--output": OneOf(("text", "json")),
    }
    switch = job_flag.form is FlagForm.SWITCH
    return JobOption(
        [job_flag.flag, job_flag.field],
        is_flag=switch,
        multiple=not switch,
        type=None if switch else types.get(job_flag.flag, click.STRING),
        metavar=None if switch else job_flag.value,
        required=job_flag.flag == "--table",
        hidden=hidden,
        help=job_flag.text,
        repeatable=job_flag.form in (FlagForm.REPEATED, FlagForm.PAIRS),
    )
