"""Errors answer what the caller may do next.

Every class below says one thing in its type: fix the input, try again, stop and call a person, or look before acting.
The exit code of a job follows from the class alone, so Airflow retries what may be retried and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, ClassVar


class LakehouseError(Exception):
    """Root of all errors; carries the facts of the message as fields."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class UserError(LakehouseError):
    """The input is wrong: fix it, then run again."""

    exit_code = 64


class UnsupportedError(UserError):
    """The table or the request uses something this package does not do, named in the message."""

    exit_code = 69


class CorruptTableError(LakehouseError):
    """Bytes on storage contradict the format: stop and call a person."""

    exit_code = 65


class RetryableError(LakehouseError):
    """A passing fault or a lost race: the same call may succeed later."""

    exit_code = 75
    retryable = True


class TableBusyError(RetryableError):
    """Another run is at the table: what was asked for has its turn when that one is over."""


class SourceMissingError(RetryableError):
    """What an ingestion is to read has not arrived yet; `wait_for_s` is how long it is worth waiting in all."""

    def __init__(self, message: str, *, wait_for_s: float, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.wait_for_s = wait_for_s


class JobStoppedError(RetryableError):
    """The job was told to stop; nothing of what it was at was committed."""


class CommitStateUnknownError(LakehouseError):
    """The commit may or may not have happened: look at the timeline before acting; nothing was deleted."""

    exit_code = 76


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known name closest to `name`, or an empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {str(close[0])!r}?" if close else ""
