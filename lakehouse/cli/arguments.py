"""Parsers for arguments that several commands share.

Arguments never contain secrets, because every user of the host can list them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lakehouse.cli.group import Given
from lakehouse.errors import UserError
from lakehouse.spec.job_command import JobArguments, parse_command
from lakehouse.spec.job_flags import ALL_FLAGS, FlagForm
from lakehouse.spec.secrets import redact_text, refuse_secret_url, refuse_secrets

CommandT = TypeVar("CommandT", bound=JobArguments)


def option_pairs(options: Sequence[str]) -> dict[str, str]:
    """Parse `--option key=value` arguments. Raise UserError if the syntax is wrong or a value contains a secret."""
    pairs = dict(option.partition("=")[::2] for option in options)
    wrong = next((option for option in options if "=" not in option), None)
    if wrong is not None:
        raise UserError(f"--option {redact_text(wrong)}: expected key=value")
    refuse_secrets(pairs, "--option")
    return pairs


def catalog_argument(text: str) -> str:
    """Return the value of `--catalog`, which is a name or a URL. Raise UserError if the URL contains a password."""
    if "://" in text:
        refuse_secret_url(text, "--catalog", "Set LAKEHOUSE_CATALOG_<NAME> to it, and give --catalog <name>.")
    return text


def job_command(given: Given, kind: type[CommandT], options: Sequence[str] = ()) -> CommandT:
    """Build the job command of class `kind` from the flags and from additional `options`.

    Raises UserError for invalid flags.
    """
    words = [given.noun, given.verb]
    for flag in ALL_FLAGS:
        value = getattr(given, flag.field, ())
        if flag.form is FlagForm.SWITCH:
            words += [flag.flag] if value else []
        else:
            words += [word for text in value for word in (flag.flag, text)]
    command = parse_command([*words, *(word for pair in options for word in ("--option", pair))])
    assert isinstance(command, kind), f"{command.title} is declared with the function of a different job"
    return command
