"""Alarms, rules and silences: the output of commands and the input of Airflow's notifiers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.fleet import Severity


class AlarmEvent(StrEnum):
    """State of an alarm."""

    #: The rule is violated.
    OPEN = "open"
    #: The rule is not violated any more.
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmEntry:
    """One alarm.

    Attributes:
        id: Number of the alarm in the catalog.
        severity: Severity of the problem.
        state: Whether the problem persists.
        table: Full name of the table.
        rule: Name of the rule.
        subject: The part of the table that the rule checks, such as a service.
        text: One sentence with the value and the threshold.
        action: How to solve the problem.
        raised: Time in ISO 8601.
        resolved: Time in ISO 8601, empty while the alarm is open.
        silenced_until: End of the silence that covers the alarm; empty if no silence does.
        value: The value that violates the rule.
        threshold: The limit that the value exceeds.
    """

    id: int
    severity: Severity
    state: AlarmEvent
    table: str
    rule: str
    subject: str
    text: str
    action: str
    raised: str
    resolved: str = ""
    silenced_until: str = ""
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmList(Document):
    """Result of `lakehouse alarms list` and `lakehouse alarms claim`.

    Attributes:
        alarms: The alarms.
        message: The id of a claimed message, the same in each attempt to send it.
        attempt: 2 if the first sender of a claimed message ended, so that the message may have been sent already.
    """

    alarms: tuple[AlarmEntry, ...] = ()
    message: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRuleEntry:
    """One rule as it applies to a table. `above` and `window` are strings such as `6h` and `5.00 GB`."""

    rule: str
    severity: str
    measure: str
    above: str
    window: str
    enabled: bool
    text: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRuleList(Document):
    """Result of `lakehouse alarms rules`. `file` is the user's file, empty if there is none."""

    file: str = ""
    rules: tuple[AlarmRuleEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceEntry(Document):
    """A silence. `scope` is a namespace, a table, or empty for all tables; `rule` is empty for all rules."""

    id: int
    rule: str
    scope: str
    until: str
    reason: str
    author: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceList(Document):
    """Result of `lakehouse alarms silences`."""

    silences: tuple[SilenceEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceEnded(Document):
    """Result of `lakehouse alarms unsilence`. `ended` is false if the silence had ended already."""

    id: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmCheck(Document):
    """Result of `lakehouse alarms check`: numbers of alarms that the check raised and resolved, and of open alarms."""

    raised: int = 0
    resolved: int = 0
    open: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmClaimEnded(Document):
    """Result of `lakehouse alarms settle`: the number of alarms that the notifier sent or released."""

    notifier: str
    alarms: int
    sent: bool
