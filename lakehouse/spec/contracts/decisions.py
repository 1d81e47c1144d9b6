"""Decisions of the scheduler about table services. `lakehouse services` prints them, and Airflow reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from lakehouse.spec.contracts.document import Document


class DecisionReason(StrEnum):
    """Why a service runs now, or why it does not run."""

    #: The service runs, because its trigger condition holds.
    DUE = "due"
    #: The service runs, because its deadline has passed.
    OVERDUE = "overdue"
    #: The service runs, because a user or a backfill requested it.
    REQUESTED = "requested"

    #: The service does not run, because its trigger condition does not hold.
    NOT_DUE = "not_due"
    #: The service does not apply to the table: for example, a copy-on-write table has no logs to compact.
    NOT_APPLICABLE = "not_applicable"
    #: The settings of the table switch the service off.
    DISABLED = "disabled"
    #: The state of the table could not be read.
    UNREADABLE = "unreadable"
    #: Another run of the same service works on the table.
    ALREADY_RUNNING = "already_running"
    #: An earlier pass chose the run, and its job has not begun.
    SUBMITTED = "submitted"
    #: The job or the DAG run ended before it began the chosen run. The next pass decides again.
    RELEASED = "released"
    #: Another service holds file groups of the table.
    FILE_GROUPS_HELD = "file_groups_held"
    #: A more urgent service of the table waits, and would hold the same file groups.
    FILE_GROUPS_WANTED = "file_groups_wanted"
    #: The pool of the service has reached its maximum number of runs.
    RUN_LIMIT = "run_limit"
    #: The runs of the last hour moved as many bytes as the pool allows.
    BYTE_LIMIT = "byte_limit"
    #: Runs with a higher rank occupy all slots of the pool until the next decision.
    NO_SLOT = "no_slot"
    #: The pass has reached the maximum number of jobs that Airflow accepts.
    JOB_LIMIT = "job_limit"
    #: Quiet hours of the policy.
    QUIET_HOURS = "quiet_hours"
    #: A writer works on the table, or starts during the predicted run, and may make the run useless.
    WRITER = "writer"
    #: The last runs failed; the pause before the next one grows with their number.
    RETRY_LATER = "retry_later"
    #: The last run found nothing to do, and the table has not changed since; a pause follows.
    NOTHING_TO_DO = "nothing_to_do"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDecision:
    """The decision about one service of one table.

    Attributes:
        table: Name in the catalog, `namespace.table`.
        service: Name of the service.
        due: Whether the trigger condition of the service holds.
        runs_now: Whether the service runs now.
        requested: Whether a user or a backfill requested the run.
        code: Reason for `runs_now`.
        reason: The same reason as a sentence for people.
        score: Priority times benefit per second; services with a higher score run first.
        inputs: Numbers that the trigger condition read.
        predicted: Cost of the run: files, bytes, seconds, and its benefit.
        deadline: Latest time of the run; empty if there is none.
        starts: Time at which a wait ends, if it is known.
    """

    table: str
    service: str
    due: bool
    runs_now: bool
    requested: bool
    code: DecisionReason
    reason: str
    score: float = 0.0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    deadline: str = ""
    starts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueServices(Document):
    """Decisions about all services and tables: `lakehouse services due --output json`.

    `batches` maps each service to groups of tables; one process runs the tables of a group.
    """

    VERSION: ClassVar[int] = 2

    decisions: tuple[ServiceDecision, ...] = ()
    batches: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDecision:
    """The newest decision about a service in the catalog. `at` is the time of the decision."""

    at: str
    due: bool
    runs_now: bool
    reason: str
    score: float = 0.0
    deadline: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One run of a service in the catalog.

    `at` is the start of the run, `took` its duration. `actual` uses the keys of `predicted`.
    """

    run: str
    state: str
    at: str
    took: str | None = None
    tries: int = 0
    instant: str | None = None
    predicted: Mapping[str, Any] = field(default_factory=dict)
    actual: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExplanation:
    """Settings, newest decision and runs of one table service.

    `decision` is None before the first `lakehouse services due`. `active_run` is the id of the run that holds the
    lease. `requests` are the parameters of the open requests.
    """

    settings: Mapping[str, Any]
    decision: RecordedDecision | None = None
    active_run: str | None = None
    requests: tuple[Mapping[str, Any], ...] = ()
    last_runs: tuple[RecordedRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecInForce:
    """The version of a table's spec that services use, and its difference from the spec file."""

    spec_version: int | None
    author: str | None
    file: str | None
    since: str
    drift: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExplanation(Document):
    """Reasons why services of a table run or wait, by service name: `lakehouse services explain --output json`."""

    table: str
    spec: SpecInForce
    services: Mapping[str, ServiceExplanation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The newest decision and the last run of one table service; each is None if there is none."""

    table: str
    service: str
    due: bool | None
    last_run: str | None
    at: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStates(Document):
    """The state of all services: `lakehouse services status --output json`."""

    services: tuple[ServiceState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """Numbers about the file layout of one table.

    If the table cannot be read, `error` is set and all numbers are None.
    """

    table: str
    freshness_lag_s: float | None = None
    file_groups: int | None = None
    base_bytes: int | None = None
    log_bytes: int | None = None
    small_files: int | None = None
    pending_plans: int | None = None
    pending_writes: int | None = None
    instants: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesHealth(Document):
    """The health of tables: `lakehouse services health --output json`."""

    tables: tuple[TableHealth, ...] = ()
