"""Assess whether a service of one table is due, and the cost of a run, from the timeline and a trial plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.core.table.services import TableServices
from lakehouse.errors import LakehouseError, UnsupportedError
from lakehouse.platform.services.registry import table_service
from lakehouse.spec.table.services import ServiceSpec, service_spec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Whether and why a service is due, the numbers behind the decision, and the cost of a run (zero if not due)."""

    due: bool
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    cost: ServiceCost = field(default_factory=ServiceCost)
    #: The state of the table could not be read; `reason` is the error.
    unreadable: bool = False
    #: Whether the service supports tables of this kind.
    applies: bool = True


def assess(services: TableServices, name: str, *, force: bool = False) -> Assessment:
    """Assess one service of a loaded table; `force` also plans the cost of a service that is not due.

    The table is not loaded again, so one load serves for all services. Nothing is written.
    """
    spec = service_spec(name)
    if spec.merge_on_read_only and not services.table.config.is_merge_on_read:
        return _unfit("a copy-on-write table has no logs to compact")
    try:
        return _assessed(services, spec, force=force)
    except UnsupportedError as error:
        # The table was read, but the service does not support it.
        return _unfit(error.message)


def _unfit(text: str) -> Assessment:
    return Assessment(due=False, reason=f"not applicable: {text}", applies=False)


def unreadable(text: str) -> Assessment:
    """Return the assessment of a service whose state cannot be read; the reason is the error."""
    return Assessment(due=False, reason=f"cannot be read: {text}", unreadable=True)


def log_fault(what: str, error: Exception) -> None:
    """Log why a table or a service cannot be read; log errors from outside of this package with a traceback."""
    logger.warning("%s cannot be read: %s", what, error, exc_info=not isinstance(error, LakehouseError))


def _assessed(services: TableServices, spec: ServiceSpec, *, force: bool) -> Assessment:
    name, service = spec.name, table_service(services, spec.name)
    inputs = asdict(service.due())
    due, reason = bool(inputs.pop("due")), str(inputs.pop("reason"))
    applies = bool(inputs.pop("applies", True))
    cost = service.cost() if due or force else ServiceCost()
    pending = [] if spec.action is None else list(services.table.timeline.where(action=spec.action, pending=True))
    if pending:
        # The run crashed or is active. An active run holds the lease of the service, so no second run starts.
        return Assessment(due=True, reason=f"plan {pending[0].requested} is pending", inputs=inputs, cost=cost)
    if due and not cost.files:
        off = [rule.pattern for rule in services.policies.partitions.of(name) if rule.enabled is False]
        why = f"; {name} is switched off for partitions that match {' or '.join(map(repr, off))}" if off else ""
        return Assessment(due=False, reason=f"{reason}; a plan would be empty{why}", inputs=inputs)
    return Assessment(due=due, reason=reason, inputs=inputs, cost=cost, applies=applies)
