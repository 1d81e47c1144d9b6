"""Check that a service can work on a table, from the metadata of the table: no data file is opened.

Data files are listed only to refuse a partition that seems not to exist.
"""

from __future__ import annotations

from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME
from lakehouse.core.operations.services.clustering import require_clusterable, require_sortable
from lakehouse.core.operations.services.compaction_execution import require_merge_on_read
from lakehouse.core.operations.services.plan_executor import pending_plan
from lakehouse.core.operations.services.ttl import require_partitioned
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.services import require_by_partition, service_spec


def check_service(table: Table, command: ServiceCommand) -> None:
    """Raise UserError if the service `command.verb` cannot run on the table, for example by its type or columns."""
    spec, services = service_spec(command.verb), table.services_as_loaded
    loaded, policies = services.table, services.policies
    if command.partitions or command.interval is not None:
        require_by_partition(spec)
    _check_partitions(table, command)
    if spec.merge_on_read_only:
        require_merge_on_read(loaded)
    if spec.name == "clustering":
        require_clusterable(loaded, policies)
        require_sortable(loaded, policies.clustering.columns)
    if spec.name == "sync":
        # This only detects a missing address or client: the check sends no request.
        open_metastore(policies.sync).close()
    if spec.name == "ttl" and policies.ttl.rule() is not None:
        require_partitioned(loaded)
    if command.instant is not None and spec.action is not None:
        pending_plan(loaded, spec.action, command.instant)


def _check_partitions(table: Table, command: ServiceCommand) -> None:
    """Check each partition by its metadata file; list the partitions only if that file is missing."""
    storage = table.services_as_loaded.table.env.storage
    for partition in command.partitions:
        try:
            storage.get(f"{partition.strip('/')}/{PARTITION_METADATA_NAME}")
        except NotFoundError:
            if partition not in table.partitions():
                raise UserError(f"table {table.name} has no partition {partition!r}", partition=partition) from None
