"""Documents of the pages in Airflow's UI and of the REST API: tables, their health, the queue, decisions and alarms.

Times are UTC milliseconds since 1970, sizes are bytes. None means that a number is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.spec.contracts.document import Document


class FleetOrder(StrEnum):
    """Orders of the tables on the page Fleet."""

    #: The most severe problem first.
    ATTENTION = "attention"
    #: By name.
    TABLE = "table"
    #: The longest time without a commit first.
    FRESHNESS = "freshness"
    #: The most small files first.
    SMALL_FILES = "small_files"
    #: The largest log files first.
    LOG_BYTES = "log_bytes"
    #: The largest tables first.
    BASE_BYTES = "base_bytes"


class FleetHealth(StrEnum):
    """Health of a table, by which the page Fleet filters."""

    #: The table has a problem of a rule, or cannot be read.
    ATTENTION = "attention"
    #: No rule has a problem with the table.
    HEALTHY = "healthy"
    #: The state of the table cannot be read.
    UNREADABLE = "unreadable"
    #: The scheduler has not looked at the table yet.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProblem:
    """A problem of a table: the rule that found it, its severity, a sentence, and the action that repairs it."""

    rule: str
    severity: int
    text: str
    action: str = ""
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The newest run of any service on a table."""

    service: str
    state: str
    started_ms: int
    ended_ms: int | None = None
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One table on the page Fleet.

    Attributes:
        table: Name in the catalog, `namespace.table`.
        location: Location of the table.
        health: Health of the table.
        severity: Severity of the worst problem, 0 for none.
        problems: Problems of the table, the worst first.
        error: Why the table cannot be read, None if it can.
        looked_ms: When the scheduler read the numbers, None before.
        numbers: Numbers of the table by name, such as `base_bytes`.
        last_run: The newest run of any service, None if there is none.
        history: Total bytes of the table at up to 28 times of the last 7 days, oldest first.
    """

    table: str
    location: str
    health: FleetHealth
    severity: int = 0
    problems: tuple[TableProblem, ...] = ()
    error: str | None = None
    looked_ms: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    last_run: RunSummary | None = None
    history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPage(Document):
    """One page of the tables. `total` is the number of tables that match the filter."""

    now_ms: int
    total: int
    offset: int
    rows: tuple[FleetRow, ...] = ()
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary(Document):
    """Numbers over all tables.

    Attributes:
        now_ms: Time of the summary.
        tables: Number of tables.
        attention: Number of tables with a problem.
        running: Number of runs of services without an outcome.
        due: Number of services that are due and do not run.
        oldest_due_ms: When the longest waiting one of them was decided to be due, None if none is due.
        bytes: Bytes of all tables.
        grown_bytes: Growth in the last day of the tables with a history of a day, None without such tables.
        alarms: Number of open alarms.
    """

    now_ms: int
    tables: int
    attention: int
    running: int
    due: int
    oldest_due_ms: int | None = None
    bytes: int = 0
    grown_bytes: int | None = None
    alarms: int = 0
