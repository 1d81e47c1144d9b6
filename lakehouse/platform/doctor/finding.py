"""The result of a check function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.spec.contracts.doctor import CheckState

_SEVERITY = (CheckState.FAILED, CheckState.WARNING, CheckState.OK, CheckState.SKIPPED)


@dataclass(frozen=True, slots=True)
class Finding:
    """State and text of a check. With an empty `advice` the advice of the check's description applies."""

    state: CheckState
    found: str
    advice: str = ""


def ok(observation: str) -> Finding:
    """Return a finding without problem."""
    return Finding(CheckState.OK, observation)


def warning(observation: str, advice: str = "") -> Finding:
    """Return a finding that works now, with a limit."""
    return Finding(CheckState.WARNING, observation, advice)


def failed(observation: str, advice: str = "") -> Finding:
    """Return a problem."""
    return Finding(CheckState.FAILED, observation, advice)


def skipped(reason: str) -> Finding:
    """Return a check that does not apply."""
    return Finding(CheckState.SKIPPED, reason)


def combined(findings: Iterable[Finding], nothing: str) -> Finding:
    """Return the findings about several things as one with the worst state; skipped with `nothing` without any.

    Texts of problems come first.
    """
    ordered = sorted(findings, key=lambda finding: _SEVERITY.index(finding.state))
    if not ordered:
        return skipped(nothing)
    advice = "; ".join(dict.fromkeys(f.advice for f in ordered if f.advice and f.state is ordered[0].state))
    return Finding(ordered[0].state, "; ".join(finding.found for finding in ordered), advice)
