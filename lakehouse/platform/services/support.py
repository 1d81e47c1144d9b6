"""The operations that a table supports, by the checks with which reads, writes and services refuse others.

The checks read neither data files nor listings, so they suit the registration of a table and a scan of a fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lakehouse.core.operations.load.table import LoadedTable, require_merger
from lakehouse.core.operations.load.write_settings import require_writes
from lakehouse.core.operations.services import clustering, compaction, log_compaction
from lakehouse.core.operations.services.archive import require_archive
from lakehouse.core.operations.services.ttl import require_partitioned
from lakehouse.core.state.table_config import require_mergeable, require_writable
from lakehouse.errors import LakehouseError
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.services import SERVICE_SPECS, ServiceSpec

READ, WRITE = "read", "write"
_Check = Callable[[LoadedTable, Policies], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSupport:
    """The operations that a table does not support, with the error of each, and the services that it does.

    A service for another kind of table, such as the compaction of a copy-on-write table, is in neither.
    """

    refusals: Mapping[str, str]
    services: tuple[str, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether the table can be read."""
        return READ not in self.refusals

    @property
    def is_writable(self) -> bool:
        """Whether the table can be written."""
        return not {READ, WRITE} & self.refusals.keys()

    @property
    def refused_services(self) -> tuple[str, ...]:
        """The services that refuse the table."""
        return tuple(name for name in self.refusals if name not in (READ, WRITE))


def table_support(table: LoadedTable, policies: Policies) -> TableSupport:
    """Return the operations that a loaded table supports; reads no file."""
    checks: dict[str, _Check] = {READ: _require_reads, WRITE: lambda loaded, _: require_writes(loaded)}
    services = {spec.name: _service_check(spec) for spec in SERVICE_SPECS if _applies(spec, table)}
    refusals = dict(_refusals(checks | services, table, policies))
    supported = tuple(name for name in services if name not in refusals)
    return TableSupport(refusals=refusals, services=supported)


def _refusals(checks: Mapping[str, _Check], table: LoadedTable, policies: Policies) -> Iterator[tuple[str, str]]:
    for name, check in checks.items():
        try:
            check(table, policies)
        except LakehouseError as error:
            yield name, error.message


def _applies(spec: ServiceSpec, table: LoadedTable) -> bool:
    """Return whether a service is for tables of this kind at all."""
    if spec.merge_on_read_only and not table.config.is_merge_on_read:
        return False
    return spec.name != "ttl" or table.config.is_partitioned


def _service_check(spec: ServiceSpec) -> _Check:
    return _CHECKS.get(spec.name, _no_check)


def _require_reads(table: LoadedTable, policies: Policies) -> None:
    del policies
    if table.config.is_merge_on_read:
        # Without logs no rows are merged; with logs the rule is needed.
        require_mergeable(table.config)
    require_merger(table.config)


def _require_writable(table: LoadedTable, policies: Policies) -> None:
    del policies
    require_writable(table.config, table.env.storage.root)


def _require_rewrites(check: _Check) -> _Check:
    def require(table: LoadedTable, policies: Policies) -> None:
        check(table, policies)
        require_mergeable(table.config)

    return require


def _no_check(table: LoadedTable, policies: Policies) -> None:
    del table, policies


#: The check of each service that refuses tables.
_CHECKS: Mapping[str, _Check] = {
    "compaction": _require_rewrites(compaction.SERVICE.require),
    "logcompaction": _require_rewrites(log_compaction.SERVICE.require),
    "clustering": _require_rewrites(clustering.SERVICE.require),
    "index": _require_writable,
    "ttl": lambda table, _: require_partitioned(table),
    "clean": _require_writable,
    "archive": lambda table, _: require_archive(table),
    "orphans": _require_writable,
}
