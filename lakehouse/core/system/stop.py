"""Stop a job by a signal, with an exception that no handler of errors catches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from lakehouse.errors import JobStoppedError

logger = logging.getLogger(__name__)
_PREPARATIONS: list[Callable[[], None]] = []


class JobStop(BaseException):
    """A signal stops the job; `error` is the JobStoppedError that the job reports.

    A signal handler raises it between any two instructions. It is not an Exception, because the code at that place may
    handle exceptions: it would report damaged bytes, or log a warning and continue.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.error = JobStoppedError(message)


def before_stop(prepare: Callable[[], None]) -> None:
    """Register a function that `stop_job` calls first; a function is registered once."""
    if prepare not in _PREPARATIONS:
        _PREPARATIONS.append(prepare)


def stop_job(message: str) -> NoReturn:
    """Stop the job of this process; signal handlers call it.

    Raises:
        JobStop: Always. A registered function that fails is logged.
    """
    for prepare in _PREPARATIONS:
        try:
            prepare()
        except Exception:
            logger.warning("preparing the stop of the job failed", exc_info=True)
    raise JobStop(message)
