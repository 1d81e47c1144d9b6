"""The implementation of each table service by the name of its ServiceSpec: those of the core and of the platform.

A service that needs only the table is registered in `lakehouse.core.operations.registry`, so that the core stays usable
without the platform. A service that also needs a metastore or another server is a module here, with the same five
functions, and an entry of PLATFORM_IMPLEMENTATIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.core.operations.registry import IMPLEMENTATIONS
from lakehouse.core.operations.services.service import Service
from lakehouse.core.table.services import TableService, TableServices
from lakehouse.platform.services import metastore_sync
from lakehouse.spec.table.services import service_spec

PLATFORM_IMPLEMENTATIONS: Mapping[str, Service[Any, Any, Any]] = {"sync": metastore_sync}
#: All services; tests compare the names with `lakehouse.spec.table.services.SERVICE_SPECS`.
ALL_IMPLEMENTATIONS: Mapping[str, Service[Any, Any, Any]] = {**IMPLEMENTATIONS, **PLATFORM_IMPLEMENTATIONS}


def table_service(services: TableServices, name: str) -> TableService[Any, Any, Any]:
    """Return a service of a loaded table by name; raise UserError with the nearest name for an unknown one."""
    spec = service_spec(name)
    return TableService(
        spec=spec, implementation=ALL_IMPLEMENTATIONS[name], table=services.table, policies=services.policies
    )
