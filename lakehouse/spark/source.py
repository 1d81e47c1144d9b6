"""The data source behind `spark.read.format("lakehouse")` and `spark.readStream.format("lakehouse")`.

`.option("where", "day = '2026-01-31'")` excludes partitions and files, as in `Table.scan`. Filters of a query exclude
none: the readers do not implement `pushFilters`. Spark 4.1 plans a read with pushed filters and stores the plan in an
object that all scans of the relation share, so other scans would lose rows. Spark does not pass the needed columns to a
Python data source either. List them in `.option("columns", "a,b")` or in `.schema(...)`.
`Table.scan(...).to_spark(spark)` reads the same files with Spark's own Parquet reader.

All queries of one DataFrame read the version that the table had at `load()`. Workers read the planned files with Arrow.

`.option("hoodie.datasource.query.incremental.format", "cdc")` makes an incremental read or a stream return changes: op,
ts_ms, and the rows before and after as JSON strings. `Table.incremental(..., format="cdc")` returns them as structs.

Spark 3.5 has no Python data source: only `lakehouse.spark.versions.v40` and newer ones import this module.

`.option("published", "database.table")` reads a published table of a metastore (see `file_sources`); no path is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.operations.read.bounded_query import BoundedQuery, with_bound
from lakehouse.core.operations.read.commit_range import last_settled
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental
from lakehouse.core.table.write_jobs import SaveMode
from lakehouse.errors import CleanedHistoryError, UserError
from lakehouse.spark.file_sources import FileTask, PlannedFiles, file_source
from lakehouse.spark.read_plan import (
    ReadTask,
    check_change_columns,
    check_types,
    open_table,
    read_request,
    read_task,
    read_tasks,
    result_schema,
)
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.source_options import NAME, parse_source_options
from lakehouse.spark.staged_writer import StagedMessage, StagedWrite, commit_frame, query_key, staged_rows
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.worker_python import set_worker_python

_BEFORE_FIRST_COMMIT = "0" * 17


def register(spark: SparkSession) -> None:
    """Register the format with a session, whose workers get the Python of this process (see `worker_python`)."""
    set_worker_python(spark)
    spark.dataSource.register(LakehouseDataSource)


class ReadPartition(InputPartition):
    """A task of a read as a partition of Spark."""

    value: ReadTask | FileTask


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
        table = open_table(options)
        self._bounded = with_bound(table, options.query)
        return spark_schema(result_schema(table, self._bounded.query, options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        if file_source(self.options) is not None:
            return PublishedReader(self.options, schema)
        return LakehouseReader(dict(self.options), schema, self._bounded)

    def streamReader(self, schema: StructType) -> LakehouseStreamReader:
        """Return the reader of a stream."""
        if file_source(self.options) is not None:
            raise UserError("a published table cannot be read as a stream; stream the table that it publishes")
        return LakehouseStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a DataFrame; its rows are staged by tasks and committed by the driver."""
        mode = SaveMode.OVERWRITE if overwrite else SaveMode.APPEND
        return LakehouseWriter(StagedWrite.begin(self.options, schema, mode))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one streaming batch; the output mode `complete` replaces all rows by each batch."""
        spark_version().require_stream_writer()
        mode = SaveMode.OVERWRITE if overwrite else SaveMode.APPEND
        write = StagedWrite.begin(self.options, schema, mode)
        writer: DataSourceStreamWriter = spark_version().stream_writer(write, query_key(self.options, write.job))
        return writer


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
            check_change_columns(schema.names)

    def partitions(self) -> list[InputPartition]:
        """Plan the read; slices with small files share a task."""
        table = open_table(self._options)
        query = self._options.query if self._bounded is None else self._bounded.on(table)
        try:
            scan = plan_read(table, read_request(self._options, query, self._schema.names))
        except CleanedHistoryError as error:
            if self._bounded is None or query == self._bounded.query:
                raise
            raise CleanedHistoryError(
                f"{error}. The DataFrame reads the version that the table had at load(): load it again to read the "
                "newest version",
                **error.facts,
            ) from error
        check_types(scan, self._schema, "Load the DataFrame again, or correct .schema(...)")
        return [ReadPartition(task) for task in read_tasks(scan, self._schema.names)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _rows(partition)


class PublishedReader(DataSourceReader):
    """Reads the files that a `FileSource` plans, in one batch query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._files = PlannedFiles(options, to_arrow_schema(schema))

    def partitions(self) -> list[InputPartition]:
        """Plan the files and divide them into tasks."""
        return [ReadPartition(task) for task in self._files.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's files."""
        assert isinstance(partition, ReadPartition)
        assert isinstance(partition.value, FileTask)
        return self._files.read(partition.value)


class LakehouseStreamReader(DataSourceStreamReader):
    """Reads a stream of commits; the offset is the completion time of the last commit that was delivered."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = parse_source_options(options, streaming=True), schema
        if self._options.reads_changes:
            check_change_columns(schema.names)

    def initialOffset(self) -> dict[str, str]:
        """Return where a new query starts: option startOffset, `earliest` (default), `latest` or a completion time."""
        start = self._options.start_offset
        if start == "latest":
            return self.latestOffset()
        return {"completed": _BEFORE_FIRST_COMMIT if start == EARLIEST else start}

    def latestOffset(self) -> dict[str, str]:
        """Return the completion time of the newest commit that a stream can pass; this lists the timeline once."""
        return {"completed": last_settled(open_table(self._options)) or _BEFORE_FIRST_COMMIT}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Plan the rows or changes of the commits completed in (start, end]."""
        begin, last = start["completed"], end["completed"]
        if begin >= last:
            return []
        query = Changes(begin, last) if self._options.reads_changes else Incremental(begin, last)
        scan = plan_read(open_table(self._options), read_request(self._options, query, self._schema.names))
        check_types(scan, self._schema, "Start the stream again from its checkpoint, or correct .schema(...)")
        return [ReadPartition(task) for task in read_tasks(scan, self._schema.names)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _rows(partition)


class LakehouseWriter(DataSourceArrowWriter):
    """Stages the rows of a DataFrame, and commits them in the driver's Python process (see `staged_writer`)."""

    def __init__(self, write: StagedWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task attempt."""
        return StagedMessage(self._write.stage(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the staged rows of the finished attempts in one commit."""
        commit_frame(self._write, staged_rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows."""
        self._write.staging.discard(staged_rows(messages))


def _rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, ReadPartition)
    assert not isinstance(partition.value, FileTask)
    return read_task(partition.value)
