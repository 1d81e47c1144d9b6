"""The services of a table by the name of their ServiceSpec: services of the core, and services of the platform.

A service that needs only the table is a property of `lakehouse.core.table.services.TableServices`, so that the core
stays usable without the platform. A service that also needs a metastore or another server is a module here, with the
same five functions, and an entry of PLATFORM_IMPLEMENTATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.core.operations.services.service import Service
from lakehouse.core.table.services import TableService, TableServices
from lakehouse.platform.services import metastore_sync, table_export
from lakehouse.spec.table.services import service_spec

PLATFORM_IMPLEMENTATIONS: Mapping[str, Service[Any, Any, Any]] = {
    "export": table_export,
    "sync": metastore_sync,
}


def table_service(services: TableServices, name: str) -> TableService[Any, Any, Any]:
    """Return a service of a loaded table by name; raise UserError with a similar name for an unknown service."""
    spec = service_spec(name)
    if name not in PLATFORM_IMPLEMENTATIONS:
        return services.named(name)
    implementation = PLATFORM_IMPLEMENTATIONS[name]
    return TableService(spec=spec, implementation=implementation, table=services.table, policies=services.policies)
