"""Documents of the pages in Airflow's UI and of the REST API: tables, their health, the queue, decisions and alarms.

Times are UTC milliseconds since 1970, sizes are bytes. None means that a number is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.spec.contracts.document import Document


class FleetOrder(StrEnum):
    """Orders of the tables on the page Fleet."""

    #: Descending by the severity of problems.
    ATTENTION = "attention"
    #: By name.
    TABLE = "table"
    #: Descending by the time since the last commit.
    FRESHNESS = "freshness"
    #: Descending by the number of small files.
    SMALL_FILES = "small_files"
    #: Descending by the size of log files.
    LOG_BYTES = "log_bytes"
    #: Descending by table size.
    BASE_BYTES = "base_bytes"


class FleetHealth(StrEnum):
    """Health of a table, by which the page Fleet filters."""

    #: The table violates a rule, or cannot be read.
    ATTENTION = "attention"
    #: The table violates no rule.
    HEALTHY = "healthy"
    #: The state of the table cannot be read.
    UNREADABLE = "unreadable"
    #: The scheduler has not polled the table yet.
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
        type: COPY_ON_WRITE or MERGE_ON_READ, as the spec declares it.
        spec_version: Version of the spec that the catalog applies.
        author: Name of the user that applied it.
        health: Health of the table.
        severity: Maximum severity of the problems; 0 if there are none.
        problems: Problems of the table, sorted by descending severity.
        error: Why the table cannot be read; None if it can.
        looked_ms: Time at which the scheduler read the numbers; None before the first read.
        numbers: Numbers of the table by name, such as `base_bytes`.
        last_run: The newest run of any service, None if there is none.
        history: Total bytes of the table at up to 28 times of the last 7 days, oldest first.
    """

    table: str
    location: str
    health: FleetHealth
    type: str = ""
    spec_version: int = 0
    author: str = ""
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
        running: Number of service runs without an outcome.
        due: Number of services that are due and not running.
        oldest_due_ms: Earliest time since which one of these services is due; None if none is due.
        bytes: Bytes of all tables.
        grown_bytes: Growth in the last day, for tables with a day of history; None if there are no such tables.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision of the scheduler about a service of a table, with its inputs and the predicted cost of a run.

    `work` is a sentence made from the predicted numbers: the work of a run, and its benefit.
    """

    decided_ms: int
    due: bool
    chosen: bool
    code: str
    reason: str
    score: float = 0.0
    deadline_ms: int | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of a service on a table, over all its tries; `actual` uses the names of `predicted`."""

    table: str
    service: str
    run: str
    state: str
    tries: int
    started_ms: int
    ended_ms: int | None = None
    instant: str | None = None
    predicted: Mapping[str, Any] = field(default_factory=dict)
    actual: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLine:
    """One service of a table: whether it is enabled, its newest decision and run, and the number of open requests.

    `applies` is False for a service that does not apply to the table, such as compaction of a copy-on-write table.
    """

    service: str
    enabled: bool
    applies: bool = True
    requests: int = 0
    decision: DecisionRecord | None = None
    run: RunRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """One version of a table's spec: its author, file and time."""

    spec_version: int
    author: str
    source: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPoint:
    """The numbers of a table in the hour that begins at `hour_ms`."""

    hour_ms: int
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage(Document):
    """One table, as recorded in the catalog.

    Attributes:
        now_ms: Time of the document.
        row: The row of the table on the Fleet page.
        spec: The spec in force.
        specs: Versions of the spec, newest first, at most 50.
        services: The services of the table.
        points: Hourly records of the last 30 days, oldest first, reduced to one record per four hours.
    """

    now_ms: int
    row: FleetRow
    spec: Mapping[str, Any] = field(default_factory=dict)
    specs: tuple[SpecChange, ...] = ()
    services: tuple[ServiceLine, ...] = ()
    points: tuple[GrowthPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyPage(Document):
    """Decisions and runs of one table service, the newest first.

    `requests` are the parameters of the open requests, oldest first.
    """

    now_ms: int
    table: str
    service: str
    decisions: tuple[DecisionRecord, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    requests: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRuns(Document):
    """The newest 1,000 runs of all services on a table, with the instants that they created."""

    now_ms: int
    table: str
    runs: tuple[RunRecord, ...] = ()


class QueueSection(StrEnum):
    """Sections of the page Queue."""

    #: Due services, in the order in which they will run.
    DUE = "due"
    #: Runs without an outcome.
    RUNNING = "running"
    #: Runs that ended in the last day.
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLine:
    """A service that is due on a table, and why it waits.

    `since_ms` is the time since which it is due, `starts_ms` the time when its wait ends; None if unknown.
    """

    table: str
    service: str
    decision: DecisionRecord
    since_ms: int | None = None
    starts_ms: int | None = None
    requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage(Document):
    """One page of a queue section: `due` lines, or `runs`."""

    now_ms: int
    section: QueueSection
    total: int
    offset: int
    due: tuple[DueLine, ...] = ()
    runs: tuple[RunRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLine:
    """One alarm. `table` is empty for an alarm of the platform; `silenced` means that a silence covers it."""

    id: int
    rule: str
    table: str
    severity: int
    state: str
    text: str
    raised_ms: int
    seen_ms: int
    resolved_ms: int | None = None
    subject: str = ""
    action: str = ""
    value: float | None = None
    threshold: float | None = None
    notified: Mapping[str, Any] = field(default_factory=dict)
    silenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLine:
    """A silence: until its end, alarms of its rule and scope are not sent. An empty rule or scope covers all."""

    id: int
    rule: str
    scope: str
    until_ms: int
    reason: str
    author: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmsPage(Document):
    """One page of alarms, and the active silences."""

    now_ms: int
    total: int
    offset: int
    alarms: tuple[AlarmLine, ...] = ()
    silences: tuple[SilenceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """A rule for alarms and table health: its limit in readable form, and the value that is compared with the limit.

    `scope` is the namespace or table for which the limit was changed, empty for all tables.
    """

    rule: str
    severity: int
    limit: str
    measures: str
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesPage(Document):
    """The effective rules. `source` is the user's file; empty if only the built-in rules apply."""

    rules: tuple[RuleLine, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """An action of a user.

    Attributes:
        id: Number of the action.
        table: Name of the table.
        action: Kind of the action.
        parameters: Its parameters.
        author: Name of the user.
        created_ms: Time of the action.
        state: `requested`, `running`, `done` or `failed`.
        request: Id of the service request; None for other actions.
        dag: Id of the DAG that runs the action; empty if no DAG does.
        dag_run: Id of this DAG's run.
        result: Result, or the error.
    """

    id: int
    table: str
    action: str
    parameters: Mapping[str, Any]
    author: str
    created_ms: int
    state: str
    request: int | None = None
    dag: str = ""
    dag_run: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsPage(Document):
    """One page of user actions, the newest first."""

    now_ms: int
    total: int
    offset: int
    actions: tuple[ActionRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview(Document):
    """The effect of an action, in sentences; `facts` contains the numbers. Nothing was changed.

    `nothing_to_do` means that the action would change nothing; the sentences contain the reason.
    """

    table: str
    action: str
    effects: tuple[str, ...] = ()
    nothing_to_do: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult(Document):
    """The result of an action that was recorded, and then requested or run."""

    action: ActionRecord
