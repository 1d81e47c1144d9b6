"""A published table behind `spark.read.format("lakehouse").option("published", "database.table")`.

Pointers are read through the files of their version, archived partitions through their own: what each is, the
metastore tells. Conditions on partition columns spare partitions; Spark applies them, and all others, to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.planning.predicate import to_arrow
from lakehouse.core.storage.locate import open_storage
from lakehouse.model.predicate import Predicate, columns_of
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.metastore.protocol import HivePartition, HiveTable
from lakehouse.platform.metastore.published import published_table, shown_partitions
from lakehouse.spec.options.sync import METASTORE_URIS, SyncPolicy

PUBLISHED = "published"
_FILES_PER_PART = 4
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class PublishedPart(InputPartition):
    """Some files of one partition, read by one task; `values` are those of its partition columns."""

    files: tuple[str, ...]
    values: Mapping[str, str]


def published_schema(options: Mapping[str, str]) -> str:
    """Return the columns of a published table, partition columns last, as Spark's DDL: Hive's types are Spark's."""
    with _Open(options) as (table, _):
        columns = (*table.columns, *table.partition_columns)
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


class PublishedReader(DataSourceReader):
    """One batch query of a published table; `predicate` tells what a filter of Spark's means, None for others."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, predicate: Callable[[Filter], Predicate | None]
    ) -> None:
        self._options, self._schema, self._predicate = dict(options), to_arrow_schema(schema), predicate
        self._pushed: tuple[Predicate, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what may spare partitions, and give all filters back: Spark applies them to the rows."""
        self._pushed = tuple(p for p in map(self._predicate, filters) if p is not None)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Ask the metastore for the partitions, and read of each that is wanted which files it shows."""
        with _Open(self._options) as (table, partitions):
            wanted = _kept(table, partitions, self._pushed)
            shown = shown_partitions(table, wanted, _storage_options(self._options), list_copies=True)
        parts: list[InputPartition] = [
            PublishedPart(files=partition.files[start : start + _FILES_PER_PART], values=partition.values)
            for partition in shown
            for start in range(0, len(partition.files), _FILES_PER_PART)
        ]
        # Spark reads a source without parts through one task that gets no part at all.
        return parts or [PublishedPart(files=(), values={})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, PublishedPart)
        for url in partition.files:
            folder, _, name = url.rpartition("/")
            with open_storage(folder, _storage_options(self._options)).open_input(name) as source:
                file = pq.ParquetFile(source)
                stored = {name.lower(): name for name in file.schema_arrow.names}
                data = [f.name for f in self._schema if f.name not in partition.values]
                wanted = [stored[name.lower()] for name in data if name.lower() in stored]
                for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                    yield _shaped(batch, self._schema, partition.values)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch in the columns of the table: those the file lacks are null, partition columns as the path has."""
    stored = {name.lower(): batch.column(name) for name in batch.schema.names}
    columns = []
    for field in schema:
        if field.name in values:
            columns.append(pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows))
        elif field.name.lower() in stored:
            columns.append(stored[field.name.lower()].cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.record_batch(columns, schema=schema)


def _kept(
    table: HiveTable, partitions: tuple[HivePartition, ...], pushed: tuple[Predicate, ...]
) -> tuple[HivePartition, ...]:
    """Return the partitions whose values meet the conditions that are on partition columns alone."""
    names = [column.name for column in table.partition_columns]
    schema = pa.schema([(name, pa.string()) for name in names])
    conditions = [p for p in pushed if set(columns_of(p)) <= set(names)]
    rows = pa.table(
        [pa.array([p.values[i] for p in partitions], pa.string()) for i in range(len(names))], schema=schema
    )
    rows = rows.append_column("\0number", pa.array(range(len(partitions)), pa.int64()))
    for condition in conditions:
        rows = rows.filter(to_arrow(condition, schema))
    return tuple(partitions[number] for number in rows.column("\0number").to_pylist())


class _Open:
    """A published table and its partitions, for the time of a `with` block."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        self._name = given[PUBLISHED]
        self._metastore = open_metastore(SyncPolicy(), what=f'option "{PUBLISHED}"', also=given.get(METASTORE_URIS, ""))

    def __enter__(self) -> tuple[HiveTable, tuple[HivePartition, ...]]:
        table = published_table(self._metastore, self._name)
        names = self._metastore.partition_names(table.database, table.name)
        return table, self._metastore.partitions(table.database, table.name, names)

    def __exit__(self, *error: object) -> None:
        self._metastore.close()


def _storage_options(options: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() not in (PUBLISHED, METASTORE_URIS, "columns")}
