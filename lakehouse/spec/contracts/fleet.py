"""Numbers, due services and problems of tables. The scheduler stores them for pages, alarms and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from lakehouse.spec.contracts.decisions import DecisionReason, ServiceDecision
from lakehouse.spec.contracts.document import Document


class Severity(IntEnum):
    """Severity of a problem; a higher number needs attention first. 0 in the catalog means that there is no problem."""

    #: Information only; no action is needed.
    INFO = 1
    #: Without an action, reads or writes become slow or fail.
    WARNING = 2
    #: Data is late or wrong, or a service cannot run.
    CRITICAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One rule that is violated on one table.

    Attributes:
        rule: Name of the rule.
        severity: Severity of the problem.
        value: The value that violates the rule; None if it is not a number.
        threshold: The limit that the value exceeds.
        text: One sentence with value and threshold, for people.
        action: The service or the command that repairs it; empty if there is none.
        subject: The part of the table that the rule checks, such as a service; empty for the table.
    """

    rule: str
    severity: Severity
    text: str
    value: float | None = None
    threshold: float | None = None
    action: str = ""
    subject: str = ""


# parameters: one field per number of a table
@dataclass(frozen=True, slots=True, kw_only=True)
class TableNumbers:
    """Numbers of one table at one time; None means unknown. Times are UTC milliseconds.

    Attributes:
        last_commit_ms: Completion time of the newest write.
        file_groups: File groups.
        files: Newest base files and their log files.
        partitions: Partitions.
        base_bytes: Size of the newest base files.
        log_bytes: Size of the log files that wait for compaction.
        log_files: Number of these log files.
        small_files: Base files below the small-file limit; None for the bucket index, whose buckets decide the sizes.
        pending_plans: Plans that are scheduled and not executed.
        pending_writes: Active and failed writes.
        failed_plans: Pending plans whose executor has ended.
        instants: Instants on the active timeline.
        rollbacks: Rollbacks on the active timeline.
        conflicts: Retries of runs after conflicts in the last day.
        metadata_bytes: Size of the metadata table at the time `metadata_ms`.
        metadata_ms: Time of this measurement, which is made once a day.
        watermark_ms: Event time up to which the table is complete.
        unpublished_since_ms: Time since which the oldest unpublished partition of the publication is ready.
    """

    last_commit_ms: int | None = None
    file_groups: int | None = None
    files: int | None = None
    partitions: int | None = None
    base_bytes: int | None = None
    log_bytes: int | None = None
    log_files: int | None = None
    small_files: int | None = None
    pending_plans: int | None = None
    pending_writes: int | None = None
    failed_plans: int | None = None
    instants: int | None = None
    rollbacks: int | None = None
    conflicts: int | None = None
    metadata_bytes: int | None = None
    metadata_ms: int | None = None
    watermark_ms: int | None = None
    unpublished_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Limits on the runs of a service from the policy of its table; see `lakehouse.spec.table.scheduling`."""

    quiet_hours: str = ""
    max_runs: int | None = None
    bytes_per_hour: int | None = None
    max_executors: int | None = None
    max_memory: int | None = None


# parameters: the state of a due service
@dataclass(frozen=True, slots=True, kw_only=True)
class DueService:
    """A service that is due on a table: its predicted cost, and whether it runs or waits.

    Attributes:
        since_ms: Time since which the service is due.
        code: Newest reason why it runs or waits.
        reason: The same reason as a sentence for people.
        files: Predicted files of a run.
        bytes: Predicted bytes of a run.
        benefit: Objects that readers and planners no longer open after a run.
        seconds: Predicted duration of a run.
        priority: Factor of the service's benefit.
        score: Priority times benefit per second; services with a higher score run first.
        deadline_ms: Time after which the service is overdue; None if it has no deadline.
        requested: Whether a user requested the run.
        places: Partitions that the run would write, if they are known; empty means all.
        starts_ms: Time at which the wait ends, if it is known.
        chosen_ms: Time at which the scheduler chose the run; None while the service waits. It stays set until the run
            ends.
        claim: Name of the pass that chose it, such as its DAG run; empty if the pass has no name.
        blocked: Reason of a wait that does not depend on other services, such as a failed run; None if there is none.
        blocked_ms: Time at which that wait ends.
        bounds: Limits from the policy.
    """

    since_ms: int
    code: DecisionReason
    reason: str = ""
    files: int = 0
    bytes: int = 0
    benefit: float = 0.0
    seconds: float = 0.0
    priority: float = 1.0
    score: float = 0.0
    deadline_ms: int | None = None
    requested: bool = False
    places: tuple[str, ...] = ()
    starts_ms: int | None = None
    chosen_ms: int | None = None
    claim: str = ""
    blocked: DecisionReason | None = None
    blocked_ms: int | None = None
    bounds: RunBounds = field(default_factory=RunBounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The newest state of one table. Times are UTC milliseconds.

    Attributes:
        numbers: Numbers of the table when the scheduler polled it.
        problems: Violated rules.
        due: The services that are due, by name.
        error: Reason why the table could not be read; None if it was read.
        looked_ms: Time of the last poll; 0 if there was none.
        look_at_ms: Time of the next poll if the table does not change; None means that only the rotation polls it.
        changed_ms: Time of a change that no poll has observed yet; 0 if there is none.
    """

    numbers: TableNumbers = field(default_factory=TableNumbers)
    problems: tuple[Problem, ...] = ()
    due: Mapping[str, DueService] = field(default_factory=dict)
    error: str | None = None
    looked_ms: int = 0
    look_at_ms: int | None = None
    changed_ms: int = 0

    @property
    def severity(self) -> int:
        """The maximum severity of the problems, or 0 if there are none."""
        return max((int(problem.severity) for problem in self.problems), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResources:
    """Resources of one spark-submit: memory in Spark's notation, number of executors, and cores per executor.

    The number of executors has an effect only on a cluster.
    """

    driver_memory: str
    executor_memory: str
    num_executors: int
    executor_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBatch:
    """One spark-submit of a service: its tables in order, its predicted duration and bytes, and its resources."""

    service: str
    tables: tuple[str, ...]
    seconds: float
    bytes: int
    resources: JobResources


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPass(Document):
    """Result of a scheduler pass: `lakehouse services pass --output json`.

    Attributes:
        looked: The tables whose storage was read.
        decisions: Decisions about the services of these tables, and about due services of others.
        batches: The jobs to start, in order of urgency.
        unreadable: Tables that could not be read, with the errors.
        waiting: Number of due services that wait.
        claims: Names of earlier passes that chose runs which have not begun.
    """

    looked: tuple[str, ...] = ()
    decisions: tuple[ServiceDecision, ...] = ()
    batches: tuple[ServiceBatch, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    waiting: int = 0
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedRun:
    """A run that a pass chose and that did not begin: its table, its service, and that pass."""

    table: str
    service: str
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedRuns(Document):
    """The released runs, about which the next pass decides again: `lakehouse services release --output json`."""

    runs: tuple[ReleasedRun, ...] = ()
