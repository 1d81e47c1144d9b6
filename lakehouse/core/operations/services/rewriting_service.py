"""Plan, schedule, run and cost of the services that rewrite file groups by plans on the timeline.

Compaction, log compaction and clustering are values of `RewritingService`. Each of their modules adds only `due`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.partition_policies import switched_off_reason
from lakehouse.core.operations.services.plan_executor import (
    PlanExecution,
    execute_plan,
    pending_plan,
    plans_without_executor,
    with_dropped,
)
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.model.instant import Action, Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

PlanT = TypeVar("PlanT")


def _no_check(_table: LoadedTable, _policies: Policies, _request: ServiceRequest) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritingService(Generic[PlanT]):
    """The differences between services that rewrite file groups, and the functions that they share.

    Attributes:
        name: The name of the service in options.
        action: The action of its plans.
        require: Raises UnsupportedError or UserError for a table that does not support the service.
        make_plan: Returns the plan of a table, whether it is due or not; None if no file group qualifies.
        no_groups: The reason to return if no file group qualifies.
        encode: Encodes a plan for its requested file, from the plan and the root of the table.
        execution: Returns the execution of a plan on an engine.
        cost_of: Returns the cost of a plan.
        refusal: Returns why no new plan is made, or None if the service is due or forced, or if only a plan can decide
            that.
        check_before_plan: Raises if `run` must not make a new plan now.
        repeated_plans: The number of new plans that `run` makes again after writes changed all their file groups.
    """

    name: str
    action: Action
    require: Callable[[LoadedTable, Policies], None]
    make_plan: Callable[[LoadedTable, Policies, ServiceRequest], PlanT | None]
    no_groups: str
    encode: Callable[[PlanT, str], bytes]
    execution: Callable[[Engine], PlanExecution[PlanT, Any, Committed]]
    cost_of: Callable[[PlanT], ServiceCost]
    refusal: Callable[[LoadedTable, Policies, ServiceRequest], NothingToDo | None] = _no_check
    check_before_plan: Callable[[LoadedTable, Policies, ServiceRequest], None] = _no_check
    repeated_plans: int = 0

    def plan(
        self, table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
    ) -> PlanT | NothingToDo:
        """Return the plan that would be scheduled now; writes nothing. Raises as `schedule` does."""
        self.require(table, policies)
        refusal = self.refusal(table, policies, request)
        return refusal or self.make_plan(table, policies, request) or self._nothing(policies, request)

    def schedule(
        self, table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
    ) -> Instant | NothingToDo:
        """Put a plan on the timeline if the service is due or forced; any process may execute it later."""
        self.require(table, policies)
        table = table.reload()
        table.store.refuse_during_restore(table.timeline)
        return self._schedule(table, policies, request)

    def _schedule(self, table: LoadedTable, policies: Policies, request: ServiceRequest) -> Instant | NothingToDo:
        """Put a plan on the timeline as `schedule` does; `table` was loaded just now."""
        require_mergeable(table.config)
        refusal = self.refusal(table, policies, request)
        nothing = self._nothing(policies, request)
        return refusal or self.schedule_plan(
            table, policies, lambda now: self.make_plan(now, policies, request), nothing
        )

    def schedule_plan(
        self,
        table: LoadedTable,
        policies: Policies,
        make_plan: Callable[[LoadedTable], PlanT | None],
        nothing: NothingToDo,
    ) -> Instant | NothingToDo:
        """Put the plan that `make_plan` returns on the timeline. If it returns no plan, return `nothing`."""
        # A listing takes long, and the lock should be held only briefly. So the table is listed before the lock is
        # taken, and again only if the timeline changed in between.
        planned = make_plan(table)
        with table_lock(table.env, policies.transaction) as lock:
            now = table.reload()
            if now.timeline != table.timeline:
                planned = make_plan(now)
            if planned is None:
                return nothing
            lock.check()
            instant = table.store.request(now.timeline, self.action, self.encode(planned, table.env.storage.root))
        logger.info("%s: planned %s %s", table.env.storage.root, self.action, instant.requested)
        return instant

    def run(
        self, table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
    ) -> Committed | NothingToDo:
        """Execute the plan of `request.instant`, or the oldest plan without executor, or a new plan if due.

        Raises UserError if there is no such plan, and RetryableError if another executor works on it or took it over,
        or if a restore is not finished.
        """
        self.require(table, policies)
        table = table.reload()
        table.store.refuse_during_restore(table.timeline)
        if request.instant is not None:
            return self.execute(table, engine, policies, pending_plan(table, self.action, request.instant))
        dropped: list[str] = []
        for pending in plans_without_executor(table, policies.transaction, self.action):
            outcome = self.execute(table.reload(), engine, policies, pending)
            if isinstance(outcome, Committed):
                return with_dropped(outcome, dropped)
            dropped += outcome.dropped
        if dropped:
            table = table.reload()
        self.check_before_plan(table, policies, request)
        while True:
            planned = self._schedule(table, policies, request)
            if isinstance(planned, NothingToDo):
                return with_dropped(planned, dropped)
            # The executor reloads the table under the lock.
            outcome = self.execute(table, engine, policies, planned, is_new=True)
            if isinstance(outcome, Committed) or len(dropped) >= self.repeated_plans:
                return with_dropped(outcome, dropped)
            # Writes have priority: the plan is made again without the files that changed.
            dropped += outcome.dropped
            table = table.reload()
            table.store.refuse_during_restore(table.timeline)

    # parameters: the plan of a table, how to execute it, and whether it is new
    def execute(
        self, table: LoadedTable, engine: Engine, policies: Policies, instant: Instant, *, is_new: bool = False
    ) -> Committed | NothingToDo:
        """Execute a pending plan; see `run` for the result and the errors, and `execute_plan` for `is_new`."""
        return execute_plan(table, policies, instant, self.execution(engine), is_new=is_new)

    def cost(self, table: LoadedTable, policies: Policies) -> ServiceCost:
        """Return the cost of a run on the loaded table, even if it is not due.

        The benefit is the reduction of files.
        """
        self.require(table, policies)
        planned = self.make_plan(table, policies, DEFAULT_REQUEST)
        return ServiceCost() if planned is None else self.cost_of(planned)

    def _nothing(self, policies: Policies, request: ServiceRequest) -> NothingToDo:
        """Return the outcome if no file group qualifies.

        It lists requested partitions in which a policy disables the service.
        """
        reason = switched_off_reason(policies, self.name, request.partitions)
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=reason or self.no_groups)
