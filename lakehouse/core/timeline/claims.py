"""Claims: at most one executor works on a plan, and an earlier one that wakes up late finds out.

Under the table lock an executor creates the next numbered file of `.hoodie/.staging/<instant>/claim-<n>`; before it
completes the plan, again under the lock, its number must still be the highest. Whoever takes over a plan whose executor
seems dead thereby fences it off, however long that one was suspended.
"""

from __future__ import annotations

from lakehouse.core.env import Env
from lakehouse.core.timeline.expiry import lease_record
from lakehouse.errors import RetryableError

_PREFIX = "claim-"


def claim(env: Env, instant: str) -> int:
    """Take the plan of `instant` over and return the number that says so; call under the table lock."""
    number = _highest(env, instant) + 1
    # Who lost the lock here and does not know it yet must not believe that the claim of its successor is its own.
    while not env.storage.create(_path(instant, number), lease_record(env, f"{instant}/{number}", 0)):
        number += 1
    return number


def check_claim(env: Env, instant: str, number: int) -> None:
    """Raise RetryableError if somebody took the plan over since; call under the table lock."""
    if not holds_claim(env, instant, number):
        raise RetryableError(
            f"{env.storage.root}: the plan {instant} was taken over by another executor, which took this one for dead; "
            "what this one wrote is not used",
            instant=instant,
        )


def holds_claim(env: Env, instant: str, number: int) -> bool:
    """Return whether nobody took the plan over since."""
    return _highest(env, instant) == number


def _highest(env: Env, instant: str) -> int:
    files, _ = env.storage.list_dir(f".hoodie/.staging/{instant}")
    numbers = [file.name.removeprefix(_PREFIX) for file in files if file.name.startswith(_PREFIX)]
    return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)


def _path(instant: str, number: int) -> str:
    return f".hoodie/.staging/{instant}/{_PREFIX}{number}"
