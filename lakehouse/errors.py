"""Exceptions of the package: the class says what the caller may do, and gives the exit code of a job.

Callers test the class and its attributes, never the text and never `facts`.
Airflow retries a failed job if the class is retryable, and no other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, ClassVar

#: Exit code of a command that Ctrl-C ended, as in every shell: 128 + SIGINT.
INTERRUPTED = 130


class LakehouseError(Exception):
    """Base class of all errors; `facts` holds the values of the message, for logs and for re-raising."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class UserError(LakehouseError):
    """The input is wrong: correct it, then run again."""

    exit_code = 64


class SettingError(UserError):
    """A declared value is wrong.

    Attributes:
        setting: The name of the setting, or the key of the option.
        service: The table service whose section declares it; empty if none does.
        related: The keys of other options that contradict or require the setting.
    """

    def __init__(
        self, message: str, *, setting: str, service: str = "", related: tuple[str, ...] = (), **facts: Any
    ) -> None:
        super().__init__(message, setting=setting, **facts)
        self.setting = setting
        self.service = service
        self.related = related


class CleanedHistoryError(UserError):
    """A clean removed files of an earlier time that the read needs."""


class SnapshotNeededError(UserError):
    """The log of a source does not say which rows changed, or is gone: read a table, or all, again."""


class UnsupportedError(UserError):
    """The table or the request uses a feature that this package does not support; the message names it."""

    exit_code = 69


class CorruptTableError(LakehouseError):
    """Stored bytes contradict the table format: stop and ask an operator."""

    exit_code = 65


class CorruptLogError(LakehouseError):
    """Bytes of the log of a source contradict its protocol: stop and ask an operator of the source."""


class RetryableError(LakehouseError):
    """A transient fault or a conflict: the same call may succeed later."""

    exit_code = 75
    retryable = True


class ConflictError(RetryableError):
    """Another commit won a conflict, so nothing was committed; `winner` is its requested time."""

    def __init__(self, message: str, *, winner: str, **facts: Any) -> None:
        super().__init__(message, winner=winner, **facts)
        self.winner = winner


class SourceChangedError(RetryableError):
    """A source changed while it was read, so nothing was committed; `path` names the first changed file."""

    def __init__(self, message: str, *, path: str, **facts: Any) -> None:
        super().__init__(message, path=path, **facts)
        self.path = path


class TableBusyError(RetryableError):
    """Another run holds the table; the request can run after that run has ended."""


class SourceMissingError(RetryableError):
    """The input of an ingestion has not arrived yet; `wait_for_s` is the total time in seconds to wait for it."""

    def __init__(self, message: str, *, wait_for_s: float, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.wait_for_s = wait_for_s


class OpenTransactionsError(RetryableError):
    """Open transactions of a source changed a table before its log had the table: read it after they have ended."""


class JobStoppedError(RetryableError):
    """The job was stopped by a signal; its unfinished work was not committed."""


class CommitStateUnknownError(LakehouseError):
    """The commit may or may not have happened: inspect the timeline before acting; no file was deleted."""

    exit_code = 76


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known name closest to `name`, or an empty string."""
    close = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" Did you mean {str(close[0])!r}?" if close else ""
