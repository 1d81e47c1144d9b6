"""Metastore sync as a service: a table that declares a metastore is due after a write, and once a day.

    declared   `hoodie.datasource.hive_sync.enable` is true; other tables are never due
    due        the newest write or the sync settings changed since the last sync; or the last comparison with the
               metastore is older than `lakehouse.sync.verify.hours`
    run        compares all partitions with the metastore, due or not, to repair changes by other programs

The last sync is recorded in the folder of the table, also by ingestions that sync after their commit. A decision
therefore does not query the metastore, and does not fail while the metastore is unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.timeline.service_log import read_last_run
from lakehouse.model.display import Condition, Readable, Shown, count_text
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import (
    COMPLETION,
    PASSED,
    SERVICE,
    compared_ms,
    compared_state,
    plan_loaded,
    sync_loaded,
    synced_state,
    synced_writes,
)
from lakehouse.platform.publish.sync_plan import SyncPlan
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.sync import SYNC_ENABLE

_HOUR_MS = 3_600_000
_UNDECLARED = (
    f"not applicable: the table declares no metastore to sync to; set the option {SYNC_ENABLE}=true in its spec, or "
    "with `lakehouse policy set --service sync` for a namespace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDue(Condition):
    """Whether a sync is due, the reason, the writes since the last sync, and its time in UTC milliseconds.

    `applies` is False for a table that declares no metastore.
    """

    due: bool
    reason: str
    writes: int = 0
    last_ms: int | None = None
    applies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced(Readable):
    """A sync that changed the metastore; `warnings` name the partitions that Hive cannot represent."""

    metastore: str
    tables: tuple[SyncedTable, ...]
    warnings: tuple[str, ...] = ()

    @property
    def instant(self) -> Instant | None:
        """None: the timeline does not change."""
        return None

    @property
    def totals(self) -> Totals:
        """Zero: a sync writes no rows and no files."""
        return Totals()

    def _shown(self) -> Shown:
        facts = {"metastore": self.metastore, "warnings": self.warnings}
        return Shown(f"synced {count_text(len(self.tables), 'table')} of the metastore", facts)


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> SyncDue:
    """Return whether a write or settings were not synced, or the last comparison is too old; queries no metastore."""
    del request
    if not policies.sync.enabled:
        return SyncDue(due=False, reason=_UNDECLARED, applies=False)
    writes = synced_writes(table)
    if not len(writes):
        return SyncDue(due=False, reason="the table has no writes")
    last = read_last_run(table.env, SERVICE)
    if last is None or not last.state:
        return SyncDue(due=True, reason="it was not synced yet", writes=len(writes))
    now, before = synced_state(table, policies.sync), compared_state(last)
    since = sum(write.completion > before.get(COMPLETION, "") for write in writes)
    if now == before:
        hours = round((table.env.clock.now_ms() - compared_ms(last)) / _HOUR_MS, 1)
        wait = policies.sync.verify_hours
        if not wait or hours < wait:
            return SyncDue(due=False, reason="the newest write is synced", last_ms=last.at_ms)
        reason = f"the metastore was compared {hours} h ago; it is compared again after {wait} h"
        return SyncDue(due=True, reason=reason, last_ms=last.at_ms)
    return SyncDue(due=True, reason=_difference(before, now, since), writes=since, last_ms=last.at_ms)


def plan(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> SyncPlan | NothingToDo:
    """Return the differences between the table and the metastore; `force` lists the table to find them.

    Raises UserError if no metastore is configured or it contains another table of this name, RetryableError if it
    does not answer.
    """
    with closing(open_metastore(policies.sync)) as metastore:
        planned = plan_loaded(table, policies.sync, metastore, force=request.force)
        return _up_to_date(metastore.name) if planned.is_empty and not planned.skipped else planned


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: a sync has no plan on the timeline."""
    del table, policies, request
    reason = "sync stores no plan on the timeline; `run` plans and executes in one step"
    return NothingToDo(code=NothingToDoReason.SINGLE_STEP, reason=reason)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Synced | NothingToDo:
    """Update the metastore to the newest state of the table, whether a sync is due or not; raises the errors of `plan`.

    A second run changes nothing.
    """
    del engine  # The driver compares and calls the metastore.
    with closing(open_metastore(policies.sync)) as metastore:
        done = sync_loaded(table.refresh(), policies.sync, metastore, force=request.force)
        if not done.wrote and not done.skipped:
            return _up_to_date(metastore.name)
        warnings = tuple(f"partition {path!r} is not synced: {reason}" for path, reason in done.skipped.items())
        return Synced(metastore=metastore.name, tables=done.tables, warnings=warnings)


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return a nominal cost: a sync reads no data, and its changes are unknown without the metastore."""
    del table, policies
    return ServiceCost(files=1, benefit=1.0)


def _up_to_date(metastore: str) -> NothingToDo:
    return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=f"the metastore {metastore} is up to date")


def _difference(before: Mapping[str, str], now: Mapping[str, str], writes: int) -> str:
    names = dict.fromkeys((*now, *before))
    passing = (COMPLETION, PASSED)
    changed = [name for name in names if name not in passing and before.get(name) != now.get(name)]
    if changed:
        return f"settings of the sync changed: {', '.join(changed)}"
    if not writes and before.get(PASSED, "") != now.get(PASSED, ""):
        return "a write that was requested before the newest synced write has ended or begun since the last sync"
    if not writes:
        return "writes that were synced are no longer on the timeline, for example after a restore"
    return f"{count_text(writes, 'write')} since the last sync"
