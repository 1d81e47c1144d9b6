"""Plans reads of published tables for `spark.read.format("lakehouse").option("published", "database.table")`.

Implements `lakehouse.spark.file_sources.FileSource`. The metastore supplies the partitions: a pointer's manifest lists
the files of its table version; the files of an archived partition are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from lakehouse.core.planning.predicate import matching
from lakehouse.errors import UserError, nearest
from lakehouse.model.predicate import Predicate, columns_of
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.metastore.protocol import HivePartition, HiveTable, Metastore
from lakehouse.platform.metastore.published import published_table, shown_partitions
from lakehouse.spark import source_options
from lakehouse.spark.file_sources import FilePartition
from lakehouse.spark.source_options import COLUMNS, WHERE, check_options, selected_columns
from lakehouse.spec.options.sync import METASTORE_URIS, SyncPolicy

OPTION = "published"
_OPTIONS = (OPTION, METASTORE_URIS, COLUMNS, WHERE)


def schema_ddl(options: Mapping[str, str]) -> str:
    """Return the published table's columns as Spark DDL, partition columns last; Hive's type names are valid.

    Option `columns` selects some of them. Raises UserError if the table does not exist or is not a publication, for a
    column that it lacks, and for an unknown option.
    """
    with _published(options) as (_, table):
        types = {column.name: column.type for column in (*table.columns, *table.partition_columns)}
    selected = selected_columns(options) or tuple(types)
    for name in selected:
        if name not in types:
            raise UserError(f"column {name!r} is not in the published table.{nearest(name, types)}", column=name)
    return ", ".join(f"`{name}` {types[name]}" for name in selected)


def plan(options: Mapping[str, str], conditions: Sequence[Predicate]) -> list[FilePartition]:
    """Return the files in partitions that meet the conditions; manifests of other partitions are not read."""
    with _published(options) as (metastore, table):
        names = metastore.partition_names(table.database, table.name)
        partitions = _matching(table, metastore.partitions(table.database, table.name, names), conditions)
        shown = shown_partitions(table, partitions, storage_options(options), list_copies=True)
    return [FilePartition(files=partition.files, values=partition.values) for partition in shown]


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options."""
    return source_options.storage_options(options)


def _matching(
    table: HiveTable, partitions: Sequence[HivePartition], conditions: Sequence[Predicate]
) -> tuple[HivePartition, ...]:
    """Return the partitions whose values meet the conditions that use partition columns only."""
    names = [column.name for column in table.partition_columns]
    schema = pa.schema([(name, pa.string()) for name in names])
    rows = pa.table(
        [pa.array([p.values[i] for p in partitions], pa.string()) for i in range(len(names))], schema=schema
    )
    rows = rows.append_column("\0number", pa.array(range(len(partitions)), pa.int64()))
    for condition in conditions:
        if set(columns_of(condition)) <= set(names):
            rows = matching(rows, condition, schema)
    return tuple(partitions[number] for number in rows.column("\0number").to_pylist())


@contextmanager
def _published(options: Mapping[str, str]) -> Iterator[tuple[Metastore, HiveTable]]:
    """Open the metastore in the options, and yield it with the published table."""
    check_options(options, _OPTIONS)
    lower_case = {key.lower(): value for key, value in options.items()}
    uris = lower_case.get(METASTORE_URIS, "")
    metastore = open_metastore(SyncPolicy(), purpose=f'option "{OPTION}"', override=uris)
    try:
        yield metastore, published_table(metastore, lower_case[OPTION])
    finally:
        metastore.close()
