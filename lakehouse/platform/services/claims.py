"""Claims of passes: which pass chose a run that has not started, and the release of runs when their pass ends.

    chosen      a pass chose the run, and its name is stored as the claim of the due service
    active      the job of the run holds the lease of the service; the claim has no effect any more
    released    the job failed or the DAG run of the pass ended before the run started, or the claim expired: the
                next pass decides again

Choices are changed under the lease of the choice only, so that a pass and a release do not overwrite each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lakehouse.errors import RetryableError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import Decision
from lakehouse.platform.services.candidates import released
from lakehouse.platform.services.pass_rules import active_runs
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.fleet import DueService, ReleasedRun

_LEASE, _LEASE_MS, _PATIENCE_MS, _PAUSE_S = "scheduler/choice", 60_000, 120_000, 0.2


@contextmanager
def choice_lease(catalog: Catalog) -> Iterator[None]:
    """Hold the lease of the choice; raise RetryableError if another pass holds it for minutes."""
    owner = f"pass-{catalog.clock.now_ms()}-{id(catalog)}"
    until = catalog.clock.now_ms() + _PATIENCE_MS
    while True:
        with catalog.leases.held(_LEASE, owner, _LEASE_MS) as lease:
            if lease is not None:
                yield
                return
        if catalog.clock.now_ms() >= until:
            raise RetryableError("another pass of the scheduler has been deciding for minutes; try again later")
        catalog.clock.sleep(_PAUSE_S)


def release_claims(
    catalog: Catalog, claims: Collection[str], *, tables: Collection[str] = (), services: Collection[str] = ()
) -> tuple[ReleasedRun, ...]:
    """Release the chosen runs of passes that have ended, except runs that have started; return the released runs.

    Args:
        catalog: The catalog.
        claims: Names of the passes.
        tables: Release only runs on these tables, whose jobs failed; empty: all tables.
        services: Release only runs of these services; empty: all services.

    Raises:
        RetryableError: A pass holds the lease of the choice for minutes.
    """
    released_runs: list[ReleasedRun] = []
    decisions: dict[tuple[int, str], Decision] = {}
    with choice_lease(catalog):
        states = catalog.states.due()
        names, active = catalog.states.names(states), active_runs(catalog)
        # A run recorded after the choice has started. After it ends, the next look decides, with its pauses.
        runs = catalog.history.newest_runs(states.keys(), limit=1)
        due: dict[int, dict[str, DueService]] = {}
        for table, name in names.items():
            for service, stored_due in states[table].due.items():
                after = released(stored_due, claims)
                if after == stored_due or (name, service) in active:
                    continue
                if (tables and name not in tables) or (services and service not in services):
                    continue
                if any(run.started_ms >= (stored_due.chosen_ms or 0) for run in runs.get((table, service), ())):
                    continue
                due.setdefault(table, dict(states[table].due))[service] = after
                decisions[(table, service)] = _released(stored_due)
                released_runs.append(ReleasedRun(table=name, service=service, claim=stored_due.claim))
        catalog.states.record_due(due)
        if decisions:
            catalog.history.decide(decisions)
    return tuple(released_runs)


def _released(due: DueService) -> Decision:
    return Decision(
        due=True,
        chosen=False,
        reason=f"the job of {due.claim} ended before the run began; the next pass decides again",
        code=DecisionReason.RELEASED,
        priority=due.score,
        deadline_ms=due.deadline_ms,
    )
