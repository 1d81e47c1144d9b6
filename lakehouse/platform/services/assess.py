"""What a service would cost and bring on one table: from its timeline, and from a trial plan where it is due.

Benefit has one unit for all services, so that they can be compared: objects that readers and planners no longer have to
open or list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lakehouse.core.table.services import TableServices
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run would touch: files and bytes that it reads, writes or removes, and its benefit in objects."""

    files: int = 0
    bytes: int = 0
    benefit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Whether a service is due, why, the numbers that say so, and what a run would cost."""

    due: bool
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    cost: Cost = Cost()
    #: The state of the table could not be read; `reason` is the error.
    unreadable: bool = False


def assess(services: TableServices, service: str, *, force: bool = False) -> Assessment:
    """Look at one service of a table that was loaded; `force` asks for the cost of one that is not due.

    The table is taken as it was loaded, so one load serves for all services; nothing is written.
    """
    timeline = services.table.timeline
    if service in _OF_LOGS and not services.table.config.is_merge_on_read:
        return Assessment(due=False, reason="a copy-on-write table has no logs to compact")
    look, price = _SERVICES[service]
    known = asdict(look(services))
    is_due, reason = bool(known.pop("due")), str(known.pop("reason"))
    pending = [i.requested for i in timeline.where(action=_PLANS.get(service, ()), pending=True)]
    cost = price(services) if is_due or force else Cost()
    if pending:
        # Whose run died; or its run is at it, which its lease tells.
        return Assessment(due=True, reason=f"plan {pending[0]} is not carried out yet", inputs=known, cost=cost)
    if is_due and not cost.files:
        return Assessment(due=False, reason=f"{reason}; a plan would be empty", inputs=known)
    return Assessment(due=is_due, reason=reason, inputs=known, cost=cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogsDue:
    due: bool
    reason: str
    delta_commits: int


def _compaction_cost(services: TableServices, *, logs_only: bool = False) -> Cost:
    plan = services.propose_compaction(logs_only=logs_only)
    if plan is None:
        return Cost()
    logs = sum(len(operation.log_files) for operation in plan.operations)
    moved = sum(operation.metrics.get("TOTAL_IO_MB", 0.0) for operation in plan.operations)
    left = len(plan.operations) if logs_only else 0
    bases = sum(operation.data_file is not None for operation in plan.operations)
    return Cost(files=logs + bases, bytes=round(moved * _MB), benefit=logs - left)


def _logs_due(services: TableServices) -> _LogsDue:
    """A log compaction is worth a trial plan once so many delta commits came as a group has to have logs.

    Which groups have them, only the plan tells. A delta commit leaves a group one log, seldom more.
    """
    commits, least = services.compaction_due().delta_commits, services.policies.compaction.log_blocks_threshold
    reason = f"{commits} delta commits since the last compaction; it takes file groups with {least} logs"
    return _LogsDue(due=commits >= least, reason=reason, delta_commits=commits)


def _clustering_cost(services: TableServices) -> Cost:
    plan = services.propose_clustering()
    if plan is None:
        return Cost()
    files = sum(len(group.slices) for group in plan.groups)
    moved = sum(group.metrics.get("TOTAL_IO_MB", 0.0) for group in plan.groups)
    return Cost(files=files, bytes=round(moved * _MB), benefit=files - sum(group.outputs for group in plan.groups))


def _clean_cost(services: TableServices) -> Cost:
    plan = services.plan_clean(dry_run=True, force=True)
    if not isinstance(plan, CleanPlan):
        return Cost()
    return Cost(files=len(plan.paths), benefit=len(plan.paths))


def _archive_cost(services: TableServices) -> Cost:
    plan = services.archive(dry_run=True, force=True)
    if not isinstance(plan, ArchivePlan):
        return Cost()
    files = _FILES_PER_ACTION * len(plan.instants)
    return Cost(files=files, benefit=files)


def _ttl_cost(services: TableServices) -> Cost:
    plan = services.plan_ttl()
    # One commit hides the files; their bytes go with the clean.
    return Cost(files=len(plan.expired), benefit=sum(expiry.files for expiry in plan.expired))


_OF_LOGS = ("compaction", "logcompaction")
_FILES_PER_ACTION = 3
#: What stands on the timeline until a plan is carried out.
_PLANS = {
    "compaction": Action.COMPACTION,
    "logcompaction": Action.LOGCOMPACTION,
    "clustering": Action.CLUSTERING,
    "clean": Action.CLEAN,
}
_SERVICES: dict[str, tuple[Callable[[TableServices], Any], Callable[[TableServices], Cost]]] = {
    "compaction": (lambda services: services.compaction_due(), _compaction_cost),
    "logcompaction": (_logs_due, lambda services: _compaction_cost(services, logs_only=True)),
    "clustering": (lambda services: services.clustering_due(), _clustering_cost),
    "ttl": (lambda services: services.ttl_due(), _ttl_cost),
    "clean": (lambda services: services.clean_due(), _clean_cost),
    "archive": (lambda services: services.archive_due(), _archive_cost),
}
