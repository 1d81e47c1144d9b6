"""Check that a service can work on a table, from the metadata of the table: no data file is listed or opened."""

from __future__ import annotations

from lakehouse.core.operations.services.clustering import require_clusterable, require_sortable
from lakehouse.core.operations.services.compaction_execution import require_merge_on_read
from lakehouse.core.operations.services.plan_executor import pending_plan
from lakehouse.core.operations.services.ttl import require_partitioned
from lakehouse.core.table.table import Table
from lakehouse.spec.contracts.job import JobCommand
from lakehouse.spec.services import require_by_partition, service_spec


def check_service(table: Table, command: JobCommand) -> None:
    """Raise UserError if the service `command.verb` cannot run on the table, for example by its type or its columns."""
    spec, services = service_spec(command.verb), table.services_as_loaded
    loaded, policies = services.table, services.policies
    if command.partitions or command.interval is not None:
        require_by_partition(spec)
    if spec.merge_on_read_only:
        require_merge_on_read(loaded)
    if spec.name == "clustering":
        require_clusterable(loaded, policies)
        require_sortable(loaded, policies.clustering.columns)
    if spec.name == "ttl" and policies.ttl.rule() is not None:
        require_partitioned(loaded)
    if command.instant is not None and spec.action is not None:
        pending_plan(loaded, spec.action, command.instant)
