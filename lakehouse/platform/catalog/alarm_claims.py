"""The claims of alarm senders; pure. A message is sent at most twice, and twice only if a sender ended in between.

    claim 1 ──► send ──► confirm                          sent once
    claim 1 ──► send, the sender ends ──► lease ends ──► claim 2 ──► send ──► confirm      one duplicate at most
    claim 2 ──► the sender ends, too ──► lease ends ──► given up: it counts as sent

Claim 2 covers the same alarms and has the same message id, so that a receiver can drop the duplicate. Before the lease
ends, no sender gets the claim, not even a retry of the same task. A sender that certainly sent nothing releases its
claim, which then does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Maximum number of attempts that may have sent a message.
MOST_ATTEMPTS = 2
_KEY = "claim"
RAISED, RESOLVED = "raised", "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of a sender for one alarm and notifier.

    Attributes:
        owner: The sender; empty after a second sender has released its claim.
        until_ms: The end of the lease.
        event: The event to send, `raised` or `resolved`.
        attempt: 1, or 2 if the sender of the first attempt ended without recording its outcome.
        message: The id of the message.
    """

    owner: str
    until_ms: int
    event: str
    attempt: int = 1
    message: str = ""

    def stored(self) -> dict[str, Any]:
        """Return the stored form of a claim."""
        return {_KEY: [self.owner, self.until_ms, self.event, self.attempt, self.message]}


def claim_of(entry: Mapping[str, Any]) -> Claim | None:
    """Return the claim in the entry of a notifier, or None if it has no claim.

    Claims of earlier versions have three values.
    """
    claim = entry.get(_KEY)
    if claim is None:
        return None
    owner, until_ms, event, *more = claim
    return Claim(owner=owner, until_ms=until_ms, event=event, **dict(zip(("attempt", "message"), more, strict=False)))


def without_claim(entry: Mapping[str, Any]) -> dict[str, int]:
    """Return the times of the events that were sent."""
    return {name: value for name, value in entry.items() if name != _KEY}


def unsent_event(entry: Mapping[str, Any], *, is_open: bool) -> str | None:
    """Return the event to send next for an alarm that has no claim, or None if all events are sent."""
    if is_open:
        return None if RAISED in entry else RAISED
    return RESOLVED if RAISED in entry and RESOLVED not in entry else None


def repeated(claims: Sequence[Claim | None], now_ms: int) -> str | None:
    """Return the id of the message to send again: the message whose lease ended first. Return None if there is none.

    If the claims of several messages have expired, each call returns one message, so that each message is repeated
    unchanged.
    """
    expired = [one for one in claims if one is not None and one.until_ms <= now_ms and one.attempt < MOST_ATTEMPTS]
    return min(expired, key=lambda one: (one.until_ms, one.message)).message if expired else None


def is_given_up(claim: Claim | None, now_ms: int) -> bool:
    """Return whether the last possible sender of a message ended without recording its outcome."""
    return claim is not None and claim.until_ms <= now_ms and claim.attempt >= MOST_ATTEMPTS


def after_release(claim: Claim, now_ms: int) -> dict[str, Any]:
    """Return the rest of a claim whose sender sent nothing: an earlier attempt that may have sent the message."""
    if claim.attempt == 1:
        return {}
    earlier = Claim(owner="", until_ms=now_ms, event=claim.event, attempt=claim.attempt - 1, message=claim.message)
    return earlier.stored()


def message_id(notifier: str, events: Iterable[tuple[int, str]]) -> str:
    """Return the id of a notifier's message about alarm events (id, event)."""
    text = ",".join(f"{alarm}:{event}" for alarm, event in sorted(events))
    return hashlib.sha256(f"{notifier}/{text}".encode()).hexdigest()[:16]
