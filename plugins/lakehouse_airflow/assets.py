"""Airflow assets of tables and of published partitions."""

from __future__ import annotations

from collections.abc import Iterable

from airflow.sdk import Asset, AssetAlias, BaseOperator

from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.table.table_spec import TableSpec, asset_uri

GROUP = "lakehouse"
#: Begin of the URIs of table assets.
TABLE_SCHEME = "lakehouse://"
#: Alias of all published partitions: a DAG with this schedule runs after any publication.
PUBLISHED = AssetAlias("lakehouse.published", group=GROUP)
#: Alias of all tables that ingestions of whole databases write: their names are known when a run has written them.
TABLES = AssetAlias("lakehouse.tables", group=GROUP)


def table_asset(spec: TableSpec) -> Asset:
    """Return the asset of a table. Its name is that of the table; its URI does not depend on the location."""
    return named_table_asset(spec.table)


def named_table_asset(table: str) -> Asset:
    """Return the asset of the table with this name."""
    return Asset(name=table, uri=asset_uri(table), group=GROUP)


def source_assets(spec: TableSpec, specs: Iterable[TableSpec]) -> tuple[Asset, ...]:
    """Return the assets of the tables whose changes a spec reads, of those that are declared in `specs`.

    A source table is the declared one with the same text as location. A table that is only joined is not among them.
    """
    source = None if spec.ingest is None else spec.ingest.source
    if not isinstance(source, TableSourceSpec):
        return ()
    places = {location.rstrip("/") for location in source.tables.values()}
    return tuple(table_asset(other) for other in specs if other.location.rstrip("/") in places)


def published_asset(target: str) -> Asset:
    """Return the asset of a published table, `database.table` of the metastore: `hive://database/table`.

    Each partition that becomes visible is an event; its extra is a PartitionEvent.
    """
    uri = _hive_uri(target)
    return Asset(name=uri, uri=uri, group=GROUP)


def partitions_asset(target: str) -> Asset:
    """Return the asset of the partitions of a published table, for a PartitionedAssetTimetable: one run per partition.

    The key of an event is the name of the partition. Airflow does not start plain asset schedules by events with keys.
    Therefore these events belong to another asset than those of `published_asset`.
    """
    uri = f"{_hive_uri(target)}/partitions"
    return Asset(name=uri, uri=uri, group=GROUP)


def _hive_uri(target: str) -> str:
    return f"hive://{target.replace('.', '/')}"


def drop_events(operator: BaseOperator) -> None:
    """Let the task succeed without asset events, by removing the assets from its outlets.

    Airflow emits an event of every asset among the outlets of a successful task. Aliases stay, because Airflow emits
    only the events that the task added to them.
    """
    operator.outlets = [outlet for outlet in operator.outlets if isinstance(outlet, AssetAlias)]
