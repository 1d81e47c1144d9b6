"""Usage mistakes as UserError: a wrong verb, flag or value has the exit code and the form of every user mistake."""

from __future__ import annotations

import click

from lakehouse.errors import UserError, nearest


def user_error(error: click.UsageError) -> UserError:
    """Return a usage error of click as UserError: one paragraph that names the command and what to do."""
    where = "lakehouse" if error.ctx is None else error.ctx.command_path
    return UserError(f"{where}{_message(error)}")


def _message(error: click.UsageError) -> str:
    help_of = "lakehouse" if error.ctx is None else error.ctx.command_path
    if isinstance(error, click.MissingParameter):
        parameter = error.param
        meaning = getattr(parameter, "help", None) or ""
        return f" needs {_flag(parameter)}: {meaning} `{help_of} --help` describes all flags."
    if isinstance(error, click.NoSuchOption):
        known = [] if error.ctx is None else _flags(error.ctx.command)
        near = nearest(error.option_name, known)
        return f": there is no flag {error.option_name!r}.{near} `{help_of} --help` lists the flags."
    if isinstance(error, click.BadParameter):
        return f": {_flag(error.param)}: {error.message}"
    if isinstance(error, click.BadOptionUsage):
        named = () if error.ctx is None else (p for p in error.ctx.command.params if error.option_name in p.opts)
        problem = "takes no value" if any(getattr(p, "is_flag", False) for p in named) else "needs a value"
        return f": {error.option_name} {problem}. `{help_of} --help` describes all flags."
    return f": {error.message}"


def _flag(parameter: click.Parameter | None) -> str:
    if parameter is None:
        return "a value"
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def _flags(command: click.Command) -> list[str]:
    return ["--help", *(flag for parameter in command.params for flag in parameter.opts if flag.startswith("--"))]
