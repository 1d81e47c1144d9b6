"""Read a published table as one DataFrame: pointers are read by manifest, copies by folder.

    sales.orders_daily      dt=2025-03-01   copy      s3://lake/orders_published/dt=2025-03-01/...
                            ...                                 one scan for all copies
                            dt=2025-03-30   pointer   manifest ─► files of the table's version        one scan each
                            dt=2025-03-31   pointer   manifest ─► ...

Partition columns are literals in each branch, so Spark prunes whole branches by conditions on them. The kind of each
partition is a parameter in the metastore; the Hudi table itself is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.platform.metastore.published import NO_OPTIONS, published_table, shown_partitions


def published(spark: Any, metastore: Metastore, name: str, *, storage_options: Mapping[str, str] = NO_OPTIONS) -> Any:
    """Return the rows of a published table `database.table` as a DataFrame: its columns, then its partition columns.

    Raises UserError if there is no such table or it is not a publication.
    """
    table = published_table(metastore, name)
    columns = [column.name for column in table.partition_columns]
    names = metastore.partition_names(table.database, table.name)
    partitions = metastore.partitions(table.database, table.name, names)
    shown = shown_partitions(table, partitions, storage_options)
    data = ", ".join(f"`{column.name}` {column.type}" for column in table.columns)
    whole = ", ".join([data, *(f"`{name}` string" for name in columns)])
    selected = [f"`{column.name}`" for column in table.columns]
    frames = []
    copies = [_native(partition.location) for partition in shown if partition.is_copy]
    if copies:
        # Spark derives the values of partition columns from the paths below the base.
        reader = spark.read.schema(whole).option("basePath", _native(table.location.rstrip("/")))
        frames.append(reader.parquet(*copies).selectExpr(*selected, *(f"`{column}`" for column in columns)))
    for partition in shown:
        # A version without files has no rows.
        if partition.files:
            # Spark must not derive partition columns from directories of the table.
            reader = spark.read.schema(data).option("recursiveFileLookup", "true")
            literals = [f"{_quoted(partition.values[column])} AS `{column}`" for column in columns]
            frames.append(reader.parquet(*map(_native, partition.files)).selectExpr(*selected, *literals))
    return reduce(lambda one, other: one.union(other), frames) if frames else spark.createDataFrame([], whole)


def create_view(
    spark: Any, metastore: Metastore, name: str, view: str = "", *, storage_options: Mapping[str, str] = NO_OPTIONS
) -> str:
    """Create a temporary view of a published table in the session, and return its name.

    The view contains the partitions that exist now; create it again to include later partitions.
    """
    view = view or name.rpartition(".")[2]
    published(spark, metastore, name, storage_options=storage_options).createOrReplaceTempView(view)
    return view


def _native(url: str) -> str:
    return url.removeprefix("file://") if url.startswith("file:///") else url


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
