"""The protocol of a table service, and the values that its functions take and return.

    due        is the trigger condition true now?                reads the timeline, writes nothing to the table
    plan       which work would a run do now?                    pure: never writes
    schedule   put the plan on the timeline                      any process may execute it later
    run        resume pending plans, else schedule and execute   commits
    cost       how much would a run read, write or delete?       for the scheduler

Each service is one module with these five functions; `lakehouse.core.table.services` has a property for each. A service
without plans on the timeline (archive, ttl, orphans, validation, sync, export) plans and executes in one run: its
`schedule` returns NothingToDo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.display import Readable, Shown, count_text, number_text, size_text
from lakehouse.model.instant import Instant
from lakehouse.spec.options.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRequest:
    """The parameters for one call of a service.

    Attributes:
        force: Plan even if the service is not due. ttl and sync run in any case; for them, `force` means to rebuild
            the statistics.
        instant: Requested time of the pending plan to execute. If None, the oldest pending plan is executed, or a new
            plan if none is pending.
        partitions: Relative paths of the partitions to which a new plan is limited; if empty, the service's option
            applies.
        pinned: Instants and partitions to keep: requested times of instants for clean, partition paths for ttl.
    """

    force: bool = False
    instant: str | None = None
    partitions: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


#: A call with default parameters.
DEFAULT_REQUEST = ServiceRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCost(Readable):
    """The predicted cost of a run: files and bytes that it reads, writes or removes, and its benefit.

    `benefit` is the number of objects that readers and planners no longer have to open or list. All services have this
    unit, so the scheduler can compare them. `partitions` are the partitions whose file groups a plan holds; empty if it
    holds none.
    """

    files: int = 0
    bytes: int = 0
    benefit: float = 0.0
    partitions: tuple[str, ...] = ()

    @property
    def numbers(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {"files": self.files, "bytes": self.bytes, "benefit": self.benefit}

    def _shown(self) -> Shown:
        size, benefit = size_text(self.bytes), number_text(self.benefit)
        line = f"cost: {count_text(self.files, 'file')}, {size}, benefit {benefit}"
        return Shown(line, {"files": self.files, "size": size, "benefit": benefit})


class ServiceDue(Protocol):
    """The result of `due`; every service adds the numbers that were compared."""

    @property
    def due(self) -> bool:
        """Whether the trigger condition holds."""
        ...

    @property
    def reason(self) -> str:
        """Why the service is due or not, as a sentence with numbers."""
        ...


class ServiceOutcome(Protocol):
    """The result of a run that did its work."""

    @property
    def instant(self) -> Instant | None:
        """The completed instant; for archive the newest instant that was archived. None: the timeline is unchanged."""
        ...

    @property
    def totals(self) -> Totals:
        """The records, files and bytes of the run."""
        ...


DueT_co = TypeVar("DueT_co", bound=ServiceDue, covariant=True)
PlanT_co = TypeVar("PlanT_co", covariant=True)
OutcomeT_co = TypeVar("OutcomeT_co", bound=ServiceOutcome, covariant=True)


class Service(Protocol[DueT_co, PlanT_co, OutcomeT_co]):
    """One table service.

    All functions raise UnsupportedError or UserError if the table does not support the service.
    """

    def due(self, table: LoadedTable, policies: Policies, request: ServiceRequest = ...) -> DueT_co:
        """Return whether the service is due, and why."""
        ...

    def plan(self, table: LoadedTable, policies: Policies, request: ServiceRequest = ...) -> PlanT_co | NothingToDo:
        """Return the plan that `schedule` or `run` would make of the loaded table."""
        ...

    def schedule(self, table: LoadedTable, policies: Policies, request: ServiceRequest = ...) -> Instant | NothingToDo:
        """Put a plan on the timeline, and return its requested instant."""
        ...

    def run(
        self, table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = ...
    ) -> OutcomeT_co | NothingToDo:
        """Execute pending plans, or a new one if the service is due."""
        ...

    def cost(self, table: LoadedTable, policies: Policies) -> ServiceCost:
        """Return the cost of a run. It is computed from a plan, even if the service is not due."""
        ...
