"""The data source behind `spark.read.format("lakehouse")` and `spark.readStream.format("lakehouse")`.

`.option("where", "day = '2026-01-31'")` excludes partitions and files, as in `Table.scan`. Filters of a query exclude
none: the readers do not implement `pushFilters`. Spark 4.1 plans a read with pushed filters and stores the plan in an
object that all scans of the relation share, so other scans would lose rows. Spark does not pass the needed columns to a
Python data source either. List them in `.option("columns", "a,b")` or in `.schema(...)`.
`Table.scan(...).to_spark(spark)` reads the same files with Spark's own Parquet reader.

All queries of one DataFrame read the version that the table had at `load()`. Workers read the planned files with Arrow.

`.option("hoodie.datasource.query.incremental.format", "cdc")` makes an incremental read or a stream return changes: op,
ts_ms, and the rows before and after as JSON strings. `Table.incremental(..., format="cdc")` returns them as structs.

`.option("published", "database.table")` reads a published table of a metastore (see `file_sources`); no path is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DataType, StructType

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.operations.load.table import LoadedTable, load_table, require_merger
from lakehouse.core.operations.read.bounded_query import BoundedQuery, query_schema, with_bound
from lakehouse.core.operations.read.cdc import JSON_SCHEMA, ChangeScan, as_json
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental, Query, ScanRequest
from lakehouse.core.operations.read.scan import Scan, read_rows
from lakehouse.core.planning.cdc import FileGroupChange
from lakehouse.core.planning.predicate import check_columns
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import CleanedHistoryError, UserError, nearest
from lakehouse.spark.file_sources import PlannedFilesReader, file_source
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.source_options import NAME, SourceOptions, parse_source_options
from lakehouse.spark.worker_python import set_worker_python
from lakehouse.spark.workers import prepare_for_reuse

_SMALL_TASK_BYTES = 32 * 1024 * 1024
_BEFORE_FIRST_COMMIT = "0" * 17


def register(spark: SparkSession) -> None:
    """Register the format with a session, whose workers get the Python of this process (see `worker_python`)."""
    set_worker_python(spark)
    spark.dataSource.register(LakehouseDataSource)


@dataclass(frozen=True)
class _SliceTask(InputPartition):
    """Some file slices of a scan, read by one task; the plan of `scan` has no slices."""

    scan: Scan
    slices: FileSlices


@dataclass(frozen=True)
class _ChangeTask(InputPartition):
    """The changes of one commit in one file group, read by one task; `columns` are the columns of the result."""

    scan: ChangeScan
    change: FileGroupChange | None
    columns: tuple[str, ...]


class LakehouseDataSource(DataSource):
    """The data source; options have Hudi's names where Hudi has such an option.

    Spark creates one data source for each relation, calls `schema` unless the query states a schema, and serializes
    the data source. All scans of the relation use this copy.
    """

    _bounded: BoundedQuery | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType | str:
        """Return the meta and data columns, or the columns of changes; only those in the option `columns`."""
        source = file_source(self.options)
        if source is not None:
            return source.schema_ddl(self.options)
        options = parse_source_options(self.options)
        table = _open(options)
        self._bounded = with_bound(table, options.query)
        return spark_schema(_result_schema(table, self._bounded.query, options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        if file_source(self.options) is not None:
            return PlannedFilesReader(self.options, schema)
        return LakehouseReader(dict(self.options), schema, self._bounded)

    def streamReader(self, schema: StructType) -> LakehouseStreamReader:
        """Return the reader of a stream."""
        if file_source(self.options) is not None:
            raise UserError("a published table cannot be read as a stream; stream the table that it publishes")
        return LakehouseStreamReader(dict(self.options), schema)


class LakehouseReader(DataSourceReader):
    """Plans one batch query into tasks and reads them as Arrow batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType, bounded: BoundedQuery | None = None) -> None:
        """Prepare a query.

        Args:
            options: Options of the data source.
            schema: Columns of the result.
            bounded: The query with the bound of the version to read; None means the newest version at planning time.
        """
        self._options, self._schema, self._bounded = parse_source_options(options), schema, bounded
        if self._options.reads_changes:
            _check_change_columns(schema.names)

    def partitions(self) -> list[InputPartition]:
        """Plan the read; slices with small files share a task."""
        table = _open(self._options)
        query = self._options.query if self._bounded is None else self._bounded.on(table)
        try:
            scan = plan_read(table, _request(self._options, query, self._schema.names))
        except CleanedHistoryError as error:
            if self._bounded is None or query == self._bounded.query:
                raise
            raise CleanedHistoryError(
                f"{error}. The DataFrame reads the version that the table had at load(): load it again to read the "
                "newest version",
                **error.facts,
            ) from error
        _check_types(scan, self._schema, "Load the DataFrame again, or correct .schema(...)")
        return _tasks(scan, self._schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition)


class LakehouseStreamReader(DataSourceStreamReader):
    """Reads a stream of commits; the offset is the completion time of the last commit that was delivered."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = parse_source_options(options, streaming=True), schema
        if self._options.reads_changes:
            _check_change_columns(schema.names)

    def initialOffset(self) -> dict[str, str]:
        """Return where a new query starts: option startOffset, `earliest` (default), `latest` or a completion time."""
        start = self._options.start_offset
        if start == "latest":
            return self.latestOffset()
        return {"completed": _BEFORE_FIRST_COMMIT if start == EARLIEST else start}

    def latestOffset(self) -> dict[str, str]:
        """Return the completion time of the newest commit; this lists the timeline once."""
        completed = _open(self._options).timeline.writes().by_completion()
        return {"completed": completed[-1].completion if completed else _BEFORE_FIRST_COMMIT}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Plan the rows or changes of the commits completed in (start, end]."""
        begin, last = start["completed"], end["completed"]
        if begin >= last:
            return []
        query = Changes(begin, last) if self._options.reads_changes else Incremental(begin, last)
        scan = plan_read(_open(self._options), _request(self._options, query, self._schema.names))
        _check_types(scan, self._schema, "Start the stream again from its checkpoint, or correct .schema(...)")
        return _tasks(scan, self._schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition)


def _open(options: SourceOptions) -> LoadedTable:
    env = Env(storage=open_storage(options.location, options.storage))
    table = load_table(env, allowed_functions=options.functions)
    require_merger(table.config)
    return table


def _request(options: SourceOptions, query: Query, columns: Sequence[str]) -> ScanRequest:
    request = ScanRequest(query=query, where=options.where)
    # Change columns contain images of whole rows, and damaged files cannot be skipped.
    if isinstance(query, Changes):
        return request
    return replace(request, columns=tuple(columns), skips_damage=options.skips_damage)


def _result_schema(table: LoadedTable, query: Query, options: SourceOptions) -> pa.Schema:
    stored = query_schema(table, query)
    data = stored if stored is not None else pa.schema([])
    rows = with_meta_fields(data)
    if options.where is not None:
        check_columns(options.where, data if options.reads_changes else rows)
    full = JSON_SCHEMA if options.reads_changes else rows
    if options.columns is None:
        return full
    for name in options.columns:
        if name not in full.names:
            place = "the changes" if options.reads_changes else "the table"
            raise UserError(f"column {name!r} is not in {place}.{nearest(name, full.names)}", column=name)
    return pa.schema([full.field(name) for name in options.columns])


def _check_change_columns(columns: Sequence[str]) -> None:
    for name in columns:
        if name not in JSON_SCHEMA.names:
            raise UserError(f"changes have the columns {', '.join(JSON_SCHEMA.names)}, not {name!r}", column=name)


def _check_types(scan: Scan | ChangeScan, schema: StructType, way_out: str) -> None:
    """Raise UserError if a column of the rows has another type than Spark expects.

    Spark would read the values in the type that it expects: it rounds decimals, and reads times as numbers.
    """
    rows = spark_schema(JSON_SCHEMA if isinstance(scan, ChangeScan) else scan.schema)
    for field in schema:
        stored, expected = (_type_text(kind) for kind in (rows[field.name].dataType, field.dataType))
        if stored != expected:
            raise UserError(
                f"column {field.name!r} has type {stored}, but this read expects {expected}: its type changed after "
                f"the read was created, or .schema(...) declares another one. {way_out}",
                column=field.name,
            )


def _type_text(kind: DataType) -> str:
    """Return a type without nullability. Both timestamp types have the same values: microseconds since 1970."""
    return kind.simpleString().replace("timestamp_ntz", "timestamp")


def _tasks(scan: Scan | ChangeScan, columns: Sequence[str]) -> list[InputPartition]:
    """Divide a planned read into tasks.

    At least one task is returned: without any, Spark would start one and pass no partition to it.
    """
    if isinstance(scan, ChangeScan):
        changes: tuple[FileGroupChange | None, ...] = scan.in_order().changes or (None,)
        return [
            _ChangeTask(scan=replace(scan, changes=()), change=change, columns=tuple(columns)) for change in changes
        ]
    slices = scan.plan.slices
    alone = replace(scan, plan=scan.plan.without_slices(), stored_schemas={})
    # A task is complete with the slice that makes it large enough.
    filled = np.cumsum(slices.sizes)
    ends = [0]
    while ends[-1] < len(slices):
        before = filled[ends[-1] - 1] if ends[-1] else 0
        ends.append(min(int(np.searchsorted(filled, before + _SMALL_TASK_BYTES)) + 1, len(slices)))
    tasks = [_SliceTask(scan=alone, slices=slices[first:last]) for first, last in pairwise(ends)]
    return list(tasks) or [_SliceTask(scan=alone, slices=slices)]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    yield from _rows(partition)
    prepare_for_reuse()


def _rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _ChangeTask):
        if partition.change is not None:
            for batch in partition.scan.read(partition.change):
                yield as_json(batch).select(list(partition.columns))
        return
    assert isinstance(partition, _SliceTask)
    for file_slice in partition.slices:
        yield from read_rows(partition.scan.context, file_slice, partition.scan.plan)
