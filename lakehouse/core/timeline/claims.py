"""Claims: at most one executor completes a plan.

An executor claims a plan under the table lock: it creates `.hoodie/.staging/<instant>/claim-<n>` with the next number,
its fencing token. Before it completes the plan, again under the lock, no higher token may exist. An executor that takes
over the plan of an expired one gets a higher token, so the stale executor aborts, however late it resumes.
"""

from __future__ import annotations

from lakehouse.core.env import Env
from lakehouse.core.timeline.expiry import lease_record
from lakehouse.errors import RetryableError

_PREFIX = "claim-"


def next_claim(env: Env, instant: str) -> int:
    """Return the fencing token of the next claim of a plan: 1 if no executor has claimed it."""
    return _highest(env, instant) + 1


def claim(env: Env, instant: str) -> int:
    """Claim the plan of `instant` and return the fencing token; call under the table lock."""
    return claim_as(env, instant, next_claim(env, instant))


def claim_as(env: Env, instant: str, number: int) -> int:
    """Claim the plan of `instant` with the token from `next_claim` and return the token; call under the table lock."""
    # Create if absent, so that an executor that lost the lock cannot mistake the claim of its successor for its own.
    while not env.storage.create(claim_path(instant, number), lease_record(env, f"{instant}/{number}", 0)):
        number += 1
    return number


def check_claim(env: Env, instant: str, token: int) -> None:
    """Raise RetryableError if another executor has claimed the plan in the meantime; call under the table lock."""
    if not holds_claim(env, instant, token):
        raise RetryableError(
            f"{env.storage.root}: the plan {instant} was taken over by another executor because the lease of this one "
            "had expired; the files that this executor wrote are not used",
            instant=instant,
        )


def holds_claim(env: Env, instant: str, token: int) -> bool:
    """Return whether the claim with this fencing token is still the newest one of the plan."""
    return _highest(env, instant) == token


def _highest(env: Env, instant: str) -> int:
    files, _ = env.storage.list_dir(f".hoodie/.staging/{instant}")
    numbers = [file.name.removeprefix(_PREFIX) for file in files if file.name.startswith(_PREFIX)]
    return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)


def claim_path(instant: str, number: int) -> str:
    """Return the path of a claim."""
    return f".hoodie/.staging/{instant}/{_PREFIX}{number}"
