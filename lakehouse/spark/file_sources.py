"""Reads Parquet files that another package plans; an option of `spark.read.format("lakehouse")` names that package.

`.option("published", "database.table")` reads a published table: its module finds the partitions and their files in the
metastore. Conditions on partition columns in `.option("where", "dt = '2026-01-31'")` exclude partitions. Filters of a
query exclude none, because Spark shares a read with pushed filters between queries (see `source`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.planning.predicate import check_columns, matching, parse_predicate
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.model.predicate import And, Predicate, columns_of, statistics_condition
from lakehouse.spark.source_options import WHERE

#: Module that implements `FileSource`, by the option that selects it (lower case).
FILE_SOURCES = {"published": "lakehouse.platform.publish.spark_source"}
_FILES_PER_TASK = 4
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePartition:
    """Files (URLs) of one partition, and the values of its partition columns by name."""

    files: tuple[str, ...]
    values: Mapping[str, str]


class FileSource(Protocol):
    """Functions of a module that plans which files the data source reads."""

    def schema_ddl(self, options: Mapping[str, str]) -> str:
        """Return the columns as DDL of Spark, partition columns last."""
        ...

    def plan(self, options: Mapping[str, str], conditions: Sequence[Predicate]) -> Sequence[FilePartition]:
        """Return the partitions whose values meet the conditions on partition columns."""
        ...

    def storage_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options with which the files' storage is opened."""
        ...


def file_source(options: Mapping[str, str]) -> FileSource | None:
    """Return the source that an option selects, or None if the options name the location of a table."""
    for key in options:
        module = FILE_SOURCES.get(key.lower())
        if module is not None:
            return cast(FileSource, importlib.import_module(module))
    return None


@dataclass(frozen=True, slots=True)
class FileTask:
    """Some files of one partition, read by one task; `values` belong to its partition columns."""

    files: tuple[str, ...]
    values: Mapping[str, str]


class PlannedFiles:
    """Reads the files that a `FileSource` plans, in one batch query."""

    def __init__(self, options: Mapping[str, str], schema: pa.Schema) -> None:
        """Prepare a query.

        Args:
            options: Options of the data source; one of them selects the file source.
            schema: Columns of the result.

        Raises:
            UserError: Option `where` has a syntax error, or uses a column that is not in the result.
        """
        source = file_source(options)
        assert source is not None, "the data source checks that an option selects a file source"
        self._options, self._schema = dict(options), schema
        self._storage_options = source.storage_options(options)
        self._where = _condition(options, self._schema)

    def tasks(self) -> list[FileTask]:
        """Plan the files and divide them into tasks."""
        source = file_source(self._options)
        assert source is not None
        tasks = [
            FileTask(files=partition.files[start : start + _FILES_PER_TASK], values=partition.values)
            for partition in source.plan(self._options, _conjuncts(statistics_condition(self._where)))
            for start in range(0, len(partition.files), _FILES_PER_TASK)
        ]
        # Without any partition, Spark would start one task and pass no partition to it.
        return tasks or [FileTask(files=(), values={})]

    def read(self, task: FileTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's files."""
        for url in task.files:
            folder, _, name = url.rpartition("/")
            with open_storage(folder, self._storage_options).open_input(name) as source:
                file = pq.ParquetFile(source)
                stored = {name.lower(): name for name in file.schema_arrow.names}
                data = [f.name for f in self._schema if f.name not in task.values]
                columns = [stored[name.lower()] for name in data if name.lower() in stored]
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                    rows = _with_table_columns(batch, self._schema, task.values)
                    if self._where is None:
                        yield rows
                    else:
                        yield from matching(pa.Table.from_batches([rows]), self._where, self._schema).to_batches()


def _condition(options: Mapping[str, str], schema: pa.Schema) -> Predicate | None:
    """Return the condition of option `where`; None without this option."""
    text = next((value for key, value in options.items() if key.lower() == WHERE), None)
    if text is None:
        return None
    where = parse_predicate(text)
    for name in columns_of(where):
        if name.partition(".")[0] not in schema.names:
            raise UserError(
                f"option {WHERE!r}: column {name!r} is not among the columns of the read: {', '.join(schema.names)}. "
                "Correct the name, or add the column to the option 'columns' or to .schema(...)",
                column=name,
            )
    check_columns(where, schema)
    return where


def _conjuncts(where: Predicate | None) -> tuple[Predicate, ...]:
    """Return conditions that all hold for a row that meets `where`."""
    if where is None:
        return ()
    return tuple(part for one in where.parts for part in _conjuncts(one)) if isinstance(where, And) else (where,)


def _with_table_columns(batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch with the columns of the table.

    Partition columns have the values of the partition. Columns that the file lacks are null.
    """
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
