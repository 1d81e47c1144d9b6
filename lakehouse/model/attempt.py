"""The attempt of a write task, and the write token that it gives to file names.

In tables of version 6 the name of a log file contains the base instant of its slice, not the instant of the write. Its
token must therefore be unique among all writes. It is derived from the instant of the write, so it also shows to which
write a log file belongs:

    <partition>-<seconds>-<milliseconds * 2,000,000 + attempt>     each number fits 31 bits

The last attempt number stands for the log file with the command block of a rollback. It belongs to no write, because it
must stay when its rollback is no longer on the timeline.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace

from lakehouse.model.instant import instant_moment

_ATTEMPTS = 2_000_000
_ROLLBACK = _ATTEMPTS - 1
_STAGED = 1_000
_TOKEN = re.compile(r"\d+-(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one write task; its three numbers are unique among the attempts of a write.

    Attributes:
        partition: The number of the task.
        stage: The number of the Spark stage.
        number: The number of the attempt.
        first: Whether this is the first attempt of its task; at most one attempt of each task is the first one.
        announced: Whether the driver recorded the file names of this attempt before it began.
        threads: The number of threads that the task may use. The result does not depend on it.
        instant: The instant of the write if the token must be unique among all writes; otherwise empty.
    """

    partition: int
    stage: int
    number: int
    first: bool = False
    announced: bool = False
    threads: int = 1
    instant: str = ""

    @property
    def token(self) -> str:
        """The write token of file names: `<partition>-<stage>-<attempt>`, or derived from `instant` (see module)."""
        if self.instant:
            seconds, milliseconds = _parts(self.instant)
            code = 0 if self.first else 1 + (self.stage * _STAGED + self.number) % (_ROLLBACK - 1)
            return f"{self.partition}-{seconds}-{milliseconds * _ATTEMPTS + code}"
        return f"{self.partition}-{self.stage}-{self.number}"

    @classmethod
    def planned(cls, task: int, stage: int = 0) -> Attempt:
        """Return the first attempt of a task; its file names can be computed before it runs."""
        return cls(partition=task, stage=stage, number=0, first=True, announced=True)

    def as_planned(self, stage: int = 0) -> Attempt:
        """Return the planned attempt if this is the first attempt; `stage` is added to the stage of all others."""
        if self.first:
            return replace(self.planned(self.partition, stage), threads=self.threads)
        return replace(self, stage=self.stage + stage)


def rollback_token(instant: str) -> str:
    """Return the write token of the log files with command blocks of a rollback."""
    seconds, milliseconds = _parts(instant)
    return f"0-{seconds}-{milliseconds * _ATTEMPTS + _ROLLBACK}"


def is_token_of(token: str | None, instant: str) -> bool:
    """Return whether a write token is derived from the instant of a write; see `rollback_token` for rollbacks."""
    match = _TOKEN.fullmatch(token or "")
    if match is None or int(match[2]) % _ATTEMPTS == _ROLLBACK:
        return False
    return (int(match[1]), int(match[2]) // _ATTEMPTS) == _parts(instant)


def _parts(instant: str) -> tuple[int, int]:
    """Return the seconds since 1970 of an instant, as if its digits were in UTC, and its milliseconds."""
    return int(instant_moment(instant).replace(tzinfo=dt.UTC).timestamp()), int(instant[14:17] or 0)
