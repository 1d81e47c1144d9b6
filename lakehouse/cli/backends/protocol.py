"""Protocol of the backends through which commands read and change the fleet's state."""

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
    """Filters and limits for the choice of due services.

    Attributes:
        services: Names of the services; empty means all.
        tables: Names of the tables; empty means all.
        force: Also choose services that are not due.
        max_runs: Maximum number of concurrent runs per service; None means no limit.
        bytes_per_hour: Maximum number of bytes per hour that the runs of a service move; None means no limit.
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
        """Names of the services to choose from."""
        return self.services or tuple(SERVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScope:
    """Scope of a policy: its service, and the table or namespace that it applies to.

    Attributes:
        service: Name of the service.
        table: Name of the table; None for a namespace.
        namespace: Name of the namespace; None for a table.
        pattern: Regular expression for partition paths; empty means all partitions.
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
        """Name of the table or namespace."""
        return str(self.table if self.namespace is None else self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """A user action to run: either a recorded action, given by its number, or a new action on a table."""

    id: int | None = None
    table: str = ""
    action: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Reads and changes the fleet's state. Each method raises UserError for an unknown table, service or setting."""

    def tables(self, namespace: str | None) -> CatalogTables:
        """Return the tables of one namespace or of all namespaces, sorted by name."""
        ...

    def states(self) -> ServiceStates:
        """Return the newest decision and the last run of every service and table."""
        ...

    def explanation(self, table: str, services: Sequence[str]) -> TableExplanation:
        """Explain for each service of a table why it runs or waits. Empty `services` means all."""
        ...

    def due(self, query: DueQuery) -> DueServices:
        """Return a decision for each service and table that may run now."""
        ...

    def request(self, table: str, service: str, partitions: Sequence[str], author: str) -> RecordedRequest:
        """Record a request to run a service."""
        ...

    def policies(self, table: str, partition: str | None) -> TablePolicies:
        """Return the service settings of a table or partition, each with the place that declares it."""
        ...

    def set_policy(self, scope: PolicyScope, settings: Mapping[str, Any]) -> PolicyChange:
        """Change settings of a service."""
        ...

    def remove_policy(self, scope: PolicyScope) -> PolicyChange:
        """Remove settings of a service."""
        ...

    def actions(self, table: str, limit: int) -> ActionsPage:
        """Return the newest user actions of a table; an empty `table` means all tables."""
        ...

    def run_action(self, request: ActionRequest) -> tuple[int, ActionResult]:
        """Run or request an action, and return the exit code with the action's record."""
        ...
