"""Partition TTL: expired partitions are deleted (TL-9.5).

due, plan   statistics (read.partition_statistics) and rules (timeline.ttl_policy_log); no data is listed
run         <t>.replacecommit.requested, .inflight, <t>_<c>.replacecommit of operation DELETE_PARTITION, as Hudi's

A run deletes no file. It hides the partitions from readers, and the next clean deletes the files, unless a savepoint
keeps them. If rows were written to an expired partition since the statistics were read, the commit is refused and
planned again, because the rows may have reset the partition's age. A partition with a pending write or plan is left for
the next run.

Rows that are upserted into an expired partition create it again. Its first commit is new, but its value is as old as
before, so a rule by value deletes it with the next run. A rule by modification uses the newest commit that wrote rows,
to base files or log files. Hudi's KEEP_BY_TIME only uses base files: it counts a compaction as a modification, and
ignores log files.

ttl stores no plan on the timeline: `run` plans and executes in one step, and `schedule` returns NothingToDo. It has no
trigger condition either, so `force` has another meaning: rebuild the statistics from a listing of the table.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.operations.undo.rollback import roll_back_failed_writes
from lakehouse.core.planning.partition_time import time_pattern
from lakehouse.core.planning.ttl import Now, expiry_times, plan_ttl
from lakehouse.core.rows.timestamp_keys import zone_id
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.ttl_policy_log import read_rules, set_rule
from lakehouse.errors import ConflictError, RetryableError, UnsupportedError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.instant import Instant, State
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.timeline_service import TTL_RULES_KEY
from lakehouse.model.ttl import PartitionExpiry, TtlDue, TtlPlan, TtlRule
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: Key of the commit's extra metadata with the number of expired partitions per rule, as JSON.
RULES_KEY = TTL_RULES_KEY


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> TtlDue:
    """Return whether partitions expire now, and why; updates the stored statistics."""
    if not table.config.is_partitioned and policies.ttl.rule() is None:
        return TtlDue(due=False, reason="the table has no partitions")
    require_partitioned(table)
    rules = _rules(table, policies)
    if not any(rule.limits for rule in rules):
        return TtlDue(due=False, reason="no rule has a limit: set lakehouse.ttl options or `lakehouse ttl policy set`")
    planned = _plan(table, policies, rules, request, save=True)
    size_bytes = sum(expiry.size_bytes for expiry in planned.expired)
    if not planned.expired:
        return TtlDue(due=False, reason=_nothing(planned))
    first = planned.expired[0]
    others = f" and {len(planned.expired) - 1} more" if len(planned.expired) > 1 else ""
    reason = f"{first.partition}: {first.reason} (rule {first.rule}){others}{_kept(planned)}"
    return TtlDue(due=True, reason=reason, partitions=len(planned.expired), size_bytes=size_bytes)


def plan(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> TtlPlan:
    """Return the partitions that would be deleted now; writes nothing.

    The plan is returned even if no partition expires, because it also contains why expired partitions are kept.
    """
    require_partitioned(table)
    return _plan(table, policies, _rules(table, policies), request, save=False)


def partition_expiry(table: LoadedTable, policies: Policies) -> dict[str, PartitionExpiry]:
    """Return when and why partitions expire by the rules of a table; writes nothing.

    Partitions without limits, and partitions that a policy keeps, are omitted. If the rules cannot be applied, the
    reason is logged, and no partition is returned.
    """
    if not table.config.is_partitioned:
        return {}
    try:
        return _partition_expiry(table, policies, _rules(table, policies))
    except (UserError, UnsupportedError, RetryableError) as error:
        logger.warning("%s: the expiry of partitions is not known: %s", table.env.storage.root, error)
        return {}


def _partition_expiry(table: LoadedTable, policies: Policies, rules: Sequence[TtlRule]) -> dict[str, PartitionExpiry]:
    if not any(rule.limits for rule in rules):
        return {}
    statistics = tuple(partition_statistics(load_statistics(table, save=False)))
    off = policies.partitions.switched_off("ttl", (row.partition for row in statistics))
    members = tuple(row for row in statistics if row.partition not in off)
    now, keys = _now(table), table.config.keys
    times = expiry_times(members, rules, keys, now)
    planned = plan_ttl(members, rules, keys, now, max_partitions=len(members) or 1)
    reasons = {expiry.partition: expiry.reason for expiry in planned.expired}
    return {name: PartitionExpiry(at_ms=times.get(name), reason=reasons.get(name, "")) for name in times | reasons}


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: ttl has no plan on the timeline."""
    del policies, request
    require_partitioned(table)
    return NothingToDo(
        code=NothingToDoReason.SINGLE_STEP,
        reason="ttl stores no plan on the timeline; `run` plans and executes in one step",
    )


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return the cost of a run: expired partitions; the benefit is the number of their files, which a clean deletes."""
    planned = plan(table, policies)
    return ServiceCost(files=len(planned.expired), benefit=sum(expiry.files for expiry in planned.expired))


#: Runs one write from request to commit.
Write = Callable[[LoadedTable, Engine, Policies, WriteRequest], Committed | NothingToDo | Conflict]


@dataclass(frozen=True, slots=True)
class PartitionTtl:
    """The service, with the write by which it deletes partitions; see `Service`."""

    write: Write

    due = staticmethod(due)
    plan = staticmethod(plan)
    schedule = staticmethod(schedule)
    cost = staticmethod(cost)

    def run(
        self, table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
    ) -> Committed | NothingToDo:
        """Delete the expired partitions, in one commit.

        Raises RetryableError if another writer is active and the policy expects a single one, ConflictError if others
        wrote to the partitions during every attempt, and UserError for a table without partitions.
        """
        del engine  # a commit without data
        require_partitioned(table)
        if policies.transaction.eager:
            # A failed write that stays pending would keep its partitions forever.
            table = roll_back_failed_writes(table, policies.transaction)
        single_attempt = replace(policies, transaction=_single_attempt(policies.transaction))
        attempts = policies.transaction.conflict_retries + 1
        conflicts: list[Conflict] = []
        while len(conflicts) < attempts:
            table = table.reload()
            table.store.refuse_during_restore(table.timeline)
            planned = _plan(table, policies, _rules(table, policies), request, save=True)
            if not planned.expired:
                return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_nothing(planned))
            outcome = self.write(table, LocalEngine(), single_attempt, _write_request(table, planned))
            if not isinstance(outcome, Conflict):
                return outcome
            conflicts.append(outcome)
            logger.info("%s: ttl plans again: %s", table.env.storage.root, outcome.reason)
        raise ConflictError(
            f"{table.env.storage.root}: other writers changed the expired partitions during every attempt, most "
            f"recently {conflicts[-1].reason}; nothing was deleted, run ttl again",
            winner=conflicts[-1].winner.requested,
        )


def set_ttl(table: LoadedTable, rule: TtlRule) -> int:
    """Set a rule of the policy log and return its number; raise UserError for an invalid time format or time zone."""
    require_partitioned(table)
    _check(rule)
    return set_rule(table.env, rule)


def _write_request(table: LoadedTable, plan: TtlPlan) -> WriteRequest:
    rules = Counter(expiry.rule for expiry in plan.expired)
    return WriteRequest(
        operation=Operation.DELETE_PARTITION,
        partitions=plan.partitions,
        extra={RULES_KEY: json.dumps(rules, sort_keys=True)},
        precondition=Precondition(timeline=table.timeline, marks={}, untouched=frozenset(plan.partitions)),
    )


def _single_attempt(policy: TransactionPolicy) -> TransactionPolicy:
    """Return a policy with one attempt per plan, because rows of a conflicting commit may reset partition ages.

    Under non-blocking concurrency control writers only append logs and never conflict. The deletion of a partition
    must conflict with logs that were committed first, so it uses optimistic concurrency control.
    """
    optimistic = "OPTIMISTIC_CONCURRENCY_CONTROL"
    return replace(policy, conflict_retries=0, concurrency=optimistic if policy.non_blocking else policy.concurrency)


def _plan(
    table: LoadedTable, policies: Policies, rules: Sequence[TtlRule], request: ServiceRequest, *, save: bool
) -> TtlPlan:
    if not any(rule.limits for rule in rules):
        return TtlPlan()
    statistics = tuple(partition_statistics(load_statistics(table, save=save, rebuild=request.force)))
    off = policies.partitions.switched_off("ttl", (row.partition for row in statistics))
    return plan_ttl(
        statistics,
        rules,
        table.config.keys,
        _now(table),
        max_partitions=policies.ttl.max_delete_partitions,
        selected=policies.ttl.selected,
        pinned=frozenset(path.strip("/") for path in request.pinned),
        busy=_busy(table) | dict.fromkeys(off, "ttl is switched off by a policy for this partition"),
    )


def _now(table: LoadedTable) -> Now:
    return Now(utc_ms=table.env.clock.now_ms(), instant=table.store.new_instant_time(table.timeline))


def _rules(table: LoadedTable, policies: Policies) -> tuple[TtlRule, ...]:
    own = policies.ttl.rule()
    rules = (*(() if own is None else (own,)), *read_rules(table.env))
    for rule in rules:
        _check(rule)
    return rules


def _check(rule: TtlRule) -> None:
    if rule.format:
        time_pattern(rule.format)
    zone_id(rule.timezone)


def _busy(table: LoadedTable) -> dict[str, str]:
    """Return the partitions in the timeline files of pending writes and plans."""
    busy: dict[str, str] = {}
    for instant in pending_writes(table):
        profile = table.store.read(instant, State.INFLIGHT)
        for stat in decode_commit(profile).stats if profile else ():
            busy[stat.partition] = f"{instant.action} {instant.requested} is pending"
    for (partition, _), requested in pending_compactions(table).items():
        busy[partition] = f"compaction {requested} is pending"
    for (partition, _), requested in pending_clustering(table).items():
        busy[partition] = f"clustering {requested} is pending"
    return busy


def _nothing(plan: TtlPlan) -> str:
    return f"no partition expired{_kept(plan)}"


def _kept(plan: TtlPlan) -> str:
    parts = []
    if plan.kept:
        first = plan.kept[0]
        parts.append(f"{len(plan.kept)} expired partitions are kept, such as {first.partition}: {first.reason}")
    if plan.untimed:
        parts.append(f"{plan.untimed} partitions have no time in their values")
    return f"; {'; '.join(parts)}" if parts else ""


def require_partitioned(table: LoadedTable) -> None:
    """Raise UserError for a table that is not partitioned or cannot be written."""
    root = table.env.storage.root
    require_writable(table.config, root)
    if not table.config.is_partitioned:
        raise UserError(f"{root} has no partitions, so none can expire; remove ttl from its services")
