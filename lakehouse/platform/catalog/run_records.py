"""The keys of a run in a catalog, and the record of its result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lakehouse.core.system.clock import Clock
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.platform.catalog.connect import is_outage
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.run_history import RunHistory, RunOutcome, RunState
from lakehouse.platform.catalog.run_leases import RunLeases
from lakehouse.platform.catalog.table_states import TableStates
from lakehouse.spec.contracts.job import IngestReport, JobStatus, ServiceReport

logger = logging.getLogger(__name__)

LEASE_MS = 60_000
#: Maximum wait for the catalog when a result is recorded, for example while its server restarts.
_PATIENCE_MS = 30_000
_PAUSE_S = 0.5
_STATES = {
    JobStatus.COMMITTED: RunState.COMMITTED,
    JobStatus.NOTHING_TO_DO: RunState.NOTHING_TO_DO,
    JobStatus.FAILED: RunState.FAILED,
}
_RATES = ("rows", "bad_records", "conflicts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The identity of a run in the run history; all tries of a run share it."""

    run_id: str
    table_id: int
    service: str


class RunCatalog(Protocol):
    """The parts of a catalog that a recorded run uses; `Catalog` has them."""

    clock: Clock

    @property
    def leases(self) -> RunLeases:
        """Return the leases of runs."""

    @property
    def history(self) -> RunHistory:
        """Return the requests, decisions and runs of services."""

    @property
    def states(self) -> TableStates:
        """Return the newest numbers of tables."""

    def entry(self, identifier: str) -> TableEntry:
        """Return the entry of a table; raise UserError if it is not registered."""

    def load_table(self, identifier: str, *, options: Mapping[str, str] | None = None) -> Table:
        """Open a table with the options of its spec and policies, overridden by `options`."""


def lease_key(identifier: str, service: str) -> str:
    """Return the name of the lease under which a service runs on a table."""
    return f"{identifier}/{service}"


def record_end(
    catalog: RunCatalog,
    key: RunKey,
    report: IngestReport | ServiceReport,
    *,
    try_number: int | None = None,
    seen: str | None = None,
) -> None:
    """Record the result of a run in the catalog; wait if the catalog is briefly unavailable.

    `seen` is the newest completion time on the timeline that a run of the whole table read.

    Raises RetryableError if the catalog stays unavailable. The retry then finds the commit on the timeline.
    """
    message = None if report.error is None else f"{report.error.kind}: {report.error.message}"
    state, actual = _STATES[report.status], None
    if report.error is not None and report.error.is_wait:
        state = RunState.WAITING
    if report.status is JobStatus.NOTHING_TO_DO and report.instant is not None:
        # An earlier try of this run committed.
        state = RunState.COMMITTED
    else:
        actual = {"files": report.files, "bytes": report.bytes, "seconds": round(report.seconds, 1)}
        # Rules of alarms read these.
        actual |= {name: value for name in _RATES if (value := getattr(report, name, 0))}
    outcome = RunOutcome(
        state=state,
        instant=report.instant,
        actual=actual,
        error=message,
        seen=seen,
        permanent=report.error is not None and not report.error.retryable,
        wait_for_s=None if report.error is None else report.error.wait_for_s,
    )
    until = catalog.clock.now_ms() + _PATIENCE_MS
    while True:
        try:
            return catalog.history.end(key.run_id, key.table_id, key.service, outcome, try_number=try_number)
        except RetryableError as error:
            if not is_outage(error) or catalog.clock.now_ms() >= until:
                raise
            logger.warning(
                "the catalog is not available to record the result of %s; trying again: %s", key.run_id, error
            )
            catalog.clock.sleep(_PAUSE_S)
