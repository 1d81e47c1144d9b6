"""The result of a check function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.spec.contracts.doctor import CheckState

_SEVERITY = (CheckState.FAILED, CheckState.WARNING, CheckState.OK, CheckState.SKIPPED)


@dataclass(frozen=True, slots=True)
class Finding:
    """State and message of a check. If `advice` is empty, the advice in the description of the check applies."""

    state: CheckState
    found: str
    advice: str = ""


def ok(observation: str) -> Finding:
    """Return a finding without problem."""
    return Finding(CheckState.OK, observation)


def warning(observation: str, advice: str = "") -> Finding:
    """Return a finding about something that works now, with a limitation."""
    return Finding(CheckState.WARNING, observation, advice)


def failed(observation: str, advice: str = "") -> Finding:
    """Return a problem."""
    return Finding(CheckState.FAILED, observation, advice)


def skipped(reason: str) -> Finding:
    """Return a check that does not apply."""
    return Finding(CheckState.SKIPPED, reason)


def combined(findings: Iterable[Finding], nothing: str) -> Finding:
    """Merge findings into one with the worst state; without findings, return skipped with the reason `nothing`.

    Messages about problems come first.
    """
    ordered = sorted(findings, key=lambda finding: _SEVERITY.index(finding.state))
    if not ordered:
        return skipped(nothing)
    advice = "; ".join(dict.fromkeys(f.advice for f in ordered if f.advice and f.state is ordered[0].state))
    return Finding(ordered[0].state, "; ".join(finding.found for finding in ordered), advice)
