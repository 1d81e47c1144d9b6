"""Orphan cleaning as a service: it periodically lists the table and deletes orphan files (see `orphans`).

due    from the file of the last run; no listing
run    list, load the timeline, delete the files that no instant lists and that are older than the grace time

If other programs write the table, a run reports the files and deletes none, unless an option demands it. A file of a
pending write is never an orphan. A run leaves no instant: it plans and executes in one step.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.orphans import delete_orphans, find_orphans, refusal_to_remove
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.planning.orphans import Orphan, OrphanPlan
from lakehouse.core.timeline.service_log import read_last_run, record_run
from lakehouse.model.display import Readable, Shown, count_text, size_text
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.upkeep import UpkeepDue, upkeep_due
from lakehouse.spec.options.policies import Policies

_SERVICE = "orphans"
_NONE = "no file is an orphan that is older than the grace time"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedOrphans(Readable):
    """The deleted orphan files."""

    orphans: tuple[Orphan, ...]

    @property
    def instant(self) -> Instant | None:
        """None: the timeline does not change."""
        return None

    @property
    def totals(self) -> Totals:
        """The number and size of the deleted files."""
        return Totals(files=len(self.orphans), bytes=sum(orphan.size_bytes for orphan in self.orphans))

    def _shown(self) -> Shown:
        totals = self.totals
        return Shown(f"removed {count_text(totals.files, 'orphan file')}, {size_text(totals.bytes)}", {}, ())


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> UpkeepDue:
    """Return whether the last search is long enough ago. A table without writes has no orphans."""
    del request
    if not len(table.timeline):
        return UpkeepDue(due=False, reason="the table has no writes")
    last = read_last_run(table.env, _SERVICE)
    return upkeep_due(None if last is None else last.at_ms, table.env.clock.now_ms(), policies.orphans.every_hours)


def plan(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> OrphanPlan | NothingToDo:
    """Return the orphan files that would be deleted now. Lists the table even if a run is not due."""
    del request
    orphans = find_orphans(table, policies.clean)
    return OrphanPlan(orphans=orphans) if orphans else NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_NONE)


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: orphan cleaning has no plan on the timeline."""
    del table, policies, request
    reason = "orphans stores no plan on the timeline; `run` plans and executes in one step"
    return NothingToDo(code=NothingToDoReason.SINGLE_STEP, reason=reason)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> RemovedOrphans | NothingToDo:
    """Delete the orphan files if a search is due or forced; the reason of NothingToDo reports files that stay.

    Raises RetryableError during a restore.
    """
    del engine  # the driver lists and deletes
    answer = due(table, policies)
    if not (answer.due or request.force):
        return NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)
    orphans = find_orphans(table, policies.clean)
    refusal = refusal_to_remove(table, orphans, policies.clean) if orphans else _NONE
    if refusal is None:
        delete_orphans(table, orphans)
    record_run(table.env, _SERVICE)
    if refusal is not None:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=refusal)
    return RemovedOrphans(orphans=orphans)


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return a nominal cost, because the number of orphans is unknown before a run lists the table."""
    del table, policies
    return ServiceCost(files=1, benefit=1.0)
