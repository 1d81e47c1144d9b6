"""Entry point of the command line: the program, its errors and its exit codes.

Commands print text for people; with `--output json` they print contracts of `lakehouse.spec.contracts`. An error is one
paragraph on standard error, and `--debug` adds its traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

import click
from click.shell_completion import shell_complete

from lakehouse import __version__
from lakehouse.cli.completion import VARIABLE
from lakehouse.cli.group import MainGroup, Settings
from lakehouse.cli.nouns import NOUNS
from lakehouse.cli.progress import terminal_progress
from lakehouse.core.storage.os_errors import translate
from lakehouse.core.system.stop import JobStop
from lakehouse.errors import INTERRUPTED, LakehouseError, UserError, nearest
from lakehouse.model.texts import printable
from lakehouse.spec.credentials_file import load_credentials
from lakehouse.spec.secrets import redact_text

_HELP = """\
Tables in the Apache Hudi format, written and read natively on Spark and Arrow.

Each COMMAND is a noun; `lakehouse COMMAND --help` lists its verbs. `lakehouse COMMAND VERB --help` describes the flags
and shows an example. --table takes a table spec (YAML), its location, or [catalog:]namespace.table.
"""

#: Control characters that messages may contain.
_LINES = "\n\t"


def program() -> click.Command:
    """Return the command line with all nouns. The module of a noun is imported when the noun is used."""
    return MainGroup("lakehouse", _HELP, NOUNS, [_version_option()])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or the code of the error's class."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and VARIABLE in os.environ:
        return shell_complete(program(), {}, "lakehouse", VARIABLE, os.environ[VARIABLE])
    _configure_logging()
    sys.excepthook = _show
    settings = Settings()
    try:
        load_credentials(os.environ)
        return _dispatch(words, settings)
    except BrokenPipeError:
        # The process that reads the output, such as `head`, has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except JobStop as stop:
        # The signal arrived while the job wrote its report.
        print(f"{type(stop.error).__name__}: {stop}", file=sys.stderr)
        return stop.error.exit_code
    except Exception as error:
        if settings.debug:
            _show(type(error), error, error.__traceback__)
        failure = _failure(error)
        name = type(error if failure is None else failure).__name__
        text = (
            str(failure)
            if failure is not None
            else f"{error}. This is an unexpected error; --debug shows its traceback"
        )
        print(f"{name}: {printable(redact_text(text), keep=_LINES)}", file=sys.stderr)
        return LakehouseError.exit_code if failure is None else failure.exit_code


def run(words: Sequence[str]) -> int:
    """Run one command on behalf of another command in this process. Expected errors are raised as LakehouseError."""
    try:
        return _dispatch(list(words), Settings())
    except click.UsageError as error:
        raise user_error(error) from None


def _dispatch(words: list[str], settings: Settings) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    root = program()
    try:
        with root.make_context("lakehouse", words, obj=settings) as ctx, terminal_progress():
            code: int | None = root.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code or 0


def _failure(error: Exception) -> LakehouseError | None:
    """Convert an exception to a LakehouseError; return None for an unexpected exception."""
    if isinstance(error, click.UsageError):
        return user_error(error)
    if isinstance(error, OSError) and error.filename is not None:
        # The error concerns a file outside of a store, such as a report. An OSError without a file name is unexpected.
        return translate(error, str(error.filename), writing=True)
    return error if isinstance(error, LakehouseError) else None


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            click.echo(__version__)
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Print the version."
    )


def _configure_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        if not any(isinstance(log_filter, _NoSecrets) for log_filter in handler.filters):
            handler.addFilter(_NoSecrets())
    # Users of an embedded catalog do not need the log lines of its schema migrations.
    logging.getLogger("alembic").setLevel(logging.WARNING)


class _NoSecrets(logging.Filter):
    """Log filter that hides passwords and escapes control characters. It also covers log lines of libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the log record, and always emit it."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            # Keep the record unchanged: the handler then reports that its format is wrong.
            return True
        redacted = printable(redact_text(message), keep=_LINES)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            # Formatters reuse `exc_text` if it is already set.
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            shown = redact_text(record.exc_text)
            if shown != record.exc_text and record.exc_info:
                record.exc_info = _without_secrets(*record.exc_info)
            record.exc_text = shown
        return True


def _without_secrets(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an exception with the same class name and a message without passwords.

    Some formatters, such as pyspark's JSON formatter, read the exception instead of the formatted traceback.
    """
    named: type[BaseException] = type(kind.__name__ if kind else "Exception", (Exception,), {})
    return named, named(redact_text(str(error))), trace


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error and its traceback, with passwords removed."""
    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


def user_error(error: click.UsageError) -> UserError:
    """Convert a usage error of click to a UserError: one paragraph with the command and the correction."""
    where = "lakehouse" if error.ctx is None else error.ctx.command_path
    return UserError(f"{where}{_message(error)}")


def _message(error: click.UsageError) -> str:
    help_of = "lakehouse" if error.ctx is None else error.ctx.command_path
    if isinstance(error, click.MissingParameter):
        parameter = error.param
        meaning = getattr(parameter, "help", None) or ""
        return f" needs {_flag(parameter)}: {meaning} `{help_of} --help` describes all flags."
    if isinstance(error, click.NoSuchOption):
        flags = [] if error.ctx is None else _flags(error.ctx.command)
        near = nearest(error.option_name, flags)
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
