"""Partition ttl: due, plan, run (TL-9.5).

due, plan   statistics (read.partition_statistics) and rules (timeline.ttl_policy_log); no data is listed
run         <t>.replacecommit.requested, .inflight, <t>_<c>.replacecommit of operation DELETE_PARTITION, as Hudi's

A run deletes no file: readers stop to see the partitions, and the next clean takes the files, unless a savepoint keeps
them. The commit is refused if rows came into one of its partitions since the statistics it was planned on, and then it
is planned anew, for those rows may have made the partition young. A partition with a write or a pending plan in flight
is left for the next run.

Rows that are upserted into a partition that expired make it anew: its first commit is that one, but its value is as old
as before, so a rule that goes by the value deletes it with the next run. The age of modifications counts rows, wherever
they were written. Hudi's KEEP_BY_TIME looks at base files alone: to it a compaction is a modification, and a log none.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.operations.undo.rollback import roll_back_failed_writes
from lakehouse.core.operations.write.request import WriteRequest
from lakehouse.core.operations.write.write import write
from lakehouse.core.planning.partition_time import time_pattern
from lakehouse.core.planning.ttl import Now, plan_ttl
from lakehouse.core.rows.timestamp_keys import zone_id
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.ttl_policy_log import read_rules, set_rule
from lakehouse.errors import ConflictError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.instant import State
from lakehouse.model.statistics import PartitionStatistics
from lakehouse.model.ttl import TtlDue, TtlPlan, TtlRule
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: Extra metadata of the commit: which rule expired how many partitions, as JSON.
RULES_KEY = "lakehouse.ttl.rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRequest:
    """What a caller asks of one run: `pinned` paths are kept with all below them, `rebuild` lists the table first."""

    pinned: Collection[str] = ()
    rebuild: bool = False


def due(table: LoadedTable, policies: Policies, request: TtlRequest | None = None) -> TtlDue:
    """Return whether partitions are to expire now, and why; brings the statistics up to date."""
    if not table.config.is_partitioned and policies.ttl.rule() is None:
        return TtlDue(due=False, reason="the table has no partitions")
    _require_partitioned(table)
    rules = _rules(table, policies)
    if not any(rule.limits for rule in rules):
        return TtlDue(due=False, reason="no rule has a limit: set lakehouse.ttl options or `lakehouse ttl policy set`")
    plan = _plan(table, policies, rules, request or TtlRequest(), save=True)
    size_bytes = sum(expiry.size_bytes for expiry in plan.expired)
    if not plan.expired:
        return TtlDue(due=False, reason=_nothing(plan))
    first = plan.expired[0]
    others = f" and {len(plan.expired) - 1} more" if len(plan.expired) > 1 else ""
    reason = f"{first.partition}: {first.reason} (rule {first.rule}){others}{_kept(plan)}"
    return TtlDue(due=True, reason=reason, partitions=len(plan.expired), size_bytes=size_bytes)


def propose(table: LoadedTable, policies: Policies, request: TtlRequest | None = None) -> TtlPlan:
    """Return what a run would delete now; writes nothing."""
    _require_partitioned(table)
    return _plan(table, policies, _rules(table, policies), request or TtlRequest(), save=False)


def run(table: LoadedTable, policies: Policies, request: TtlRequest | None = None) -> Committed | NothingToDo:
    """Delete the partitions that expired, in one commit.

    Raises RetryableError if another writer is alive where one alone is expected, ConflictError if others wrote to the
    partitions at every try; UserError for a table without partitions.
    """
    _require_partitioned(table)
    request = request or TtlRequest()
    if policies.transaction.eager:
        # Else what a dead writer left in flight would keep its partitions for ever.
        table = roll_back_failed_writes(table, policies.transaction)
    once = replace(policies, transaction=_once(policies.transaction))
    tries = policies.transaction.conflict_retries + 1
    lost: list[Conflict] = []
    while len(lost) < tries:
        table = table.reload()
        table.store.refuse_during_restore(table.timeline)
        plan = _plan(table, policies, _rules(table, policies), request, save=True)
        if not plan.expired:
            return NothingToDo(reason=_nothing(plan))
        outcome = write(table, LocalEngine(), once, _write_request(table, plan))
        if not isinstance(outcome, Conflict):
            return outcome
        lost.append(outcome)
        logger.info("%s: ttl is planned anew: %s", table.env.storage.root, outcome.reason)
    raise ConflictError(
        f"{table.env.storage.root}: others wrote to the partitions that expire, at last {lost[-1].reason}; nothing was "
        "deleted, run ttl again",
        winner=lost[-1].winner.requested,
    )


def set_ttl(table: LoadedTable, rule: TtlRule) -> int:
    """Set a rule of the policy log; raise UserError for a pattern of times or a zone that cannot be read."""
    _require_partitioned(table)
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


def _once(policy: TransactionPolicy) -> TransactionPolicy:
    """Return how the commit is made true: tried once, for what won over it may have made the partitions young.

    Writers that never wait for each other append logs only, and a partition is no log: it is deleted as beside writers
    who do. Their logs lose to it if they come later, and win if they come first.
    """
    optimistic = "OPTIMISTIC_CONCURRENCY_CONTROL"
    return replace(policy, conflict_retries=0, concurrency=optimistic if policy.non_blocking else policy.concurrency)


def _plan(
    table: LoadedTable, policies: Policies, rules: Sequence[TtlRule], request: TtlRequest, *, save: bool
) -> TtlPlan:
    if not any(rule.limits for rule in rules):
        return TtlPlan()
    found = _partitions(table, save=save, rebuild=request.rebuild)
    return plan_ttl(
        found,
        rules,
        table.config.keys,
        Now(utc_ms=table.env.clock.now_ms(), instant=table.store.new_instant_time(table.timeline)),
        max_partitions=policies.ttl.max_delete_partitions,
        selected=policies.ttl.selected,
        pinned=frozenset(path.strip("/") for path in request.pinned),
        busy=_busy(table),
    )


def _partitions(table: LoadedTable, *, save: bool, rebuild: bool) -> tuple[PartitionStatistics, ...]:
    return partition_statistics(load_statistics(table, save=save, rebuild=rebuild))


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
    """Return the partitions that something pending is at, as far as it says so before it commits."""
    busy: dict[str, str] = {}
    for instant in pending_writes(table):
        profile = table.store.read(instant, State.INFLIGHT)
        for stat in decode_commit(profile).stats if profile else ():
            busy[stat.partition] = f"{instant.action} {instant.requested} is in flight"
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
        parts.append(f"{len(plan.kept)} expired ones are kept, such as {plan.kept[0].partition}: {plan.kept[0].reason}")
    if plan.untimed:
        parts.append(f"{plan.untimed} partitions name no time by the format")
    return f"; {'; '.join(parts)}" if parts else ""


def _require_partitioned(table: LoadedTable) -> None:
    root = table.env.storage.root
    require_writable(table.config, root)
    if not table.config.is_partitioned:
        raise UserError(f"{root} has no partitions, so none can expire; leave ttl out of its services")
