"""Airflow assets of tables and of published partitions."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.table.table_spec import TableSpec, asset_uri
from lakehouse_airflow.compat import Asset, AssetAlias, BaseOperator

GROUP = "lakehouse"
#: Prefix of the URIs of table assets.
TABLE_SCHEME = "lakehouse://"
#: Asset alias for all published partitions. A DAG with this schedule runs after each publication.
PUBLISHED = AssetAlias("lakehouse.published", group=GROUP)
#: Asset alias for tables that an ingestion of a whole database writes. Their names are only known after a run.
TABLES = AssetAlias("lakehouse.tables", group=GROUP)


def table_asset(spec: TableSpec) -> Asset:
    """Return the asset of a table. It has the table's name, and a URI that does not depend on the table's location."""
    return named_table_asset(spec.table)


def named_table_asset(table: str) -> Asset:
    """Return the asset of the table with this name."""
    return Asset(name=table, uri=asset_uri(table), group=GROUP)


def source_assets(spec: TableSpec, specs: Iterable[TableSpec]) -> tuple[Asset, ...]:
    """Return the assets of the source tables whose changes a spec reads, if `specs` declares them.

    A source table matches the declared table with an equal location string. Tables that are only joined are not
    included.
    """
    source = None if spec.ingest is None else spec.ingest.source
    if not isinstance(source, TableSourceSpec):
        return ()
    places = {location.rstrip("/") for location in source.tables.values()}
    return tuple(table_asset(other) for other in specs if other.location.rstrip("/") in places)


def published_asset(target: str) -> Asset:
    """Return the asset `hive://database/table` of a published table, which is `database.table` in the metastore.

    The asset gets an event for each partition that becomes visible. The extra of the event is a PartitionEvent.
    """
    uri = _hive_uri(target)
    return Asset(name=uri, uri=uri, group=GROUP)


def partitions_asset(target: str) -> Asset:
    """Return the asset of the partitions of a published table, for a PartitionedAssetTimetable: one run per partition.

    The key of an event is the partition name. Airflow does not trigger plain asset schedules with keyed events.
    Therefore these events belong to a different asset than the events of `published_asset`.
    """
    uri = f"{_hive_uri(target)}/partitions"
    return Asset(name=uri, uri=uri, group=GROUP)


def _hive_uri(target: str) -> str:
    return f"hive://{target.replace('.', '/')}"


def drop_events(operator: BaseOperator) -> None:
    """Remove the assets from the outlets of a task, so that it succeeds without asset events.

    Airflow emits an event for every asset in the outlets of a successful task. Aliases stay, because for them Airflow
    only emits events that the task added.
    """
    operator.outlets = [outlet for outlet in operator.outlets if isinstance(outlet, AssetAlias)]
