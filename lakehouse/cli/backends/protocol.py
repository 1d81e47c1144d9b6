"""Reads and changes of the state of a fleet, which commands make in a catalog or over the REST API of the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakehouse.errors import UserError
from lakehouse.spec.contracts.catalog import CatalogTables, PolicyChange
from lakehouse.spec.contracts.decisions import DueServices, ServiceStates, TableExplanation
from lakehouse.spec.contracts.pages import ActionResult, ActionsPage
from lakehouse.spec.contracts.policies import TablePolicies
from lakehouse.spec.contracts.services import RecordedRequest
from lakehouse.spec.table.services import SERVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class DueQuery:
    """A question about due services.

    Attributes:
        services: Names of services; empty for all.
        tables: Names of tables; empty for all.
        force: Also choose services that are not due.
        max_runs: Maximum number of concurrent runs of a service, None without a limit.
        bytes_per_hour: Maximum number of bytes that runs of a service move per hour, None without a limit.
        batch_tables: Maximum number of tables per batch.
        batch_s: Maximum predicted duration of a batch in seconds.
    """

    services: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    force: bool = False
    max_runs: int | None = None
    bytes_per_hour: int | None = None
    batch_tables: int = 20
    batch_s: float = 300

    @property
    def chosen_services(self) -> tuple[str, ...]:
        """The services of the question."""
        return self.services or tuple(SERVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScope:
    """A policy: its service, and the table or the namespace that it applies to.

    Attributes:
        service: Name of the service.
        table: Name of the table; None for a namespace.
        namespace: Name of the namespace; None for a table.
        pattern: Regular expression of partitions, empty for all.
    """

    service: str
    table: str | None = None
    namespace: str | None = None
    pattern: str = ""

    def __post_init__(self) -> None:
        if (self.table is None) == (self.namespace is None):
            raise UserError("a policy needs --table namespace.table, or --namespace for all its tables, and not both")

    @property
    def name(self) -> str:
        """The name of the table or the namespace."""
        return str(self.table if self.namespace is None else self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """An action of a user: a recorded one by its number, or a new one on a table."""

    id: int | None = None
    table: str = ""
    action: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """The state of a fleet. Each method raises UserError for an unknown table, service or setting."""

    def tables(self, namespace: str | None) -> CatalogTables:
        """Return the tables of a namespace, or of all, by name."""
        ...

    def states(self) -> ServiceStates:
        """Return the newest decision and the last run of every service and table."""
        ...

    def explanation(self, table: str, services: Sequence[str]) -> TableExplanation:
        """Return why services of a table run or wait; of all services if none is named."""
        ...

    def due(self, query: DueQuery) -> DueServices:
        """Return decisions on services that may run now."""
        ...

    def request(self, table: str, service: str, partitions: Sequence[str], author: str) -> RecordedRequest:
        """Record the request of a service."""
        ...

    def policies(self, table: str, partition: str | None) -> TablePolicies:
        """Return the service settings of a table or a partition, with their origins."""
        ...

    def set_policy(self, scope: PolicyScope, settings: Mapping[str, Any]) -> PolicyChange:
        """Change settings of a service."""
        ...

    def remove_policy(self, scope: PolicyScope) -> PolicyChange:
        """Remove settings of a service."""
        ...

    def actions(self, table: str, limit: int) -> ActionsPage:
        """Return the newest actions of users; `table` is empty for all tables."""
        ...

    def run_action(self, request: ActionRequest) -> tuple[int, ActionResult]:
        """Do an action, or request it, and return the exit code with the record of the action."""
        ...
