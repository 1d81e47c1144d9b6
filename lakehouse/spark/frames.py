"""Reads a table as a DataFrame, and writes a DataFrame to a table: the same calls on all versions of Spark.

`spark.read.format("lakehouse")` needs a Python data source, which Spark 3.5 does not have. `read` plans the read at the
call, and Spark's own Parquet reader reads the files without logs, as for `Table.scan(...).to_spark(spark)`.

`df.write.format("lakehouse")` is for smaller writes (see `staged_writer`). `write` takes the same options of
Hudi jobs, and its tasks write to the file groups of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.read.bounded_query import with_bound
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.scan import Scan, with_stored_schemas
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.errors import UserError
from lakehouse.spark.engine import own_workers
from lakehouse.spark.file_sources import FileTask, PlannedFiles, file_source
from lakehouse.spark.read_plan import ReadTask, open_table, read_request, read_task, read_tasks, result_schema
from lakehouse.spark.scan import scan_to_spark, spark_schema
from lakehouse.spark.source_options import COLUMNS, PATH, WHERE, parse_source_options
from lakehouse.spark.stream import stream_key, write_once
from lakehouse.spark.versions.choice import require_classic, spark_version
from lakehouse.spark.worker_python import set_worker_python
from lakehouse.spark.workers import map_in_arrow, task_numbers
from lakehouse.spec.options.hudi.write_job import parse_write_job


def read(
    spark: SparkSession,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    columns: Sequence[str] = (),
    where: str | None = None,
) -> DataFrame:
    """Return rows or changes of a table as a DataFrame; it keeps the version that the table has at the call.

    `read(spark, path, options)` returns the rows of `spark.read.format("lakehouse").options(**options).load(path)`, and
    works on Spark 3.5 too.

    Args:
        spark: The session.
        path: URL or path of the table; None if the option `published` selects a published table.
        options: Options of `format("lakehouse")`: `hoodie.datasource.query.type` (snapshot, read_optimized,
            incremental), `as.of.instant`, `hoodie.datasource.read.begin.instanttime` and others.
        columns: Columns of the result, as in the option `columns`; empty means all columns.
        where: Condition on the rows, as in the option `where`; it excludes partitions and files.

    Raises:
        UserError: An option is unknown or contradicts another one, a column does not exist, the version of Spark is not
            supported, or the session is a Spark Connect session.

    Example:
        changes = read(spark, path, {"hoodie.datasource.query.incremental.format": "cdc"})
    """
    require_classic(spark)
    set_worker_python(spark)
    given = {**(options or {})}
    for name, value in ((PATH, path), (COLUMNS, ",".join(columns) or None), (WHERE, where)):
        if value is None:
            continue
        if any(key.lower() == name for key in given):
            raise UserError(f"{name!r} is an argument and an option of this read; give one of them", argument=name)
        given[name] = value
    if file_source(given) is not None:
        return _published(spark, given)
    return _table(spark, given)


def write(
    frame: DataFrame,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    mode: str = "append",
    batch_id: int | None = None,
) -> Committed | NothingToDo:
    """Write a DataFrame to a table with the options of a Hudi job, and return the commit.

    `write(frame, path, options, mode=mode)` has the effect of
    `frame.write.format("hudi").options(**options).mode(mode).save(path)`. A missing table is created.

    Args:
        frame: The rows.
        path: URL or path of the table.
        options: Hudi's options, such as `hoodie.datasource.write.recordkey.field`; the page "Options of Hudi jobs"
            lists them.
        mode: append, overwrite, ignore or error.
        batch_id: The number of the batch, in a function of `foreachBatch`: a batch that Spark repeats after a restart
            is then not written again. A function that writes a table several times per batch gives each write its own
            `hoodie.datasource.write.streaming.checkpoint.identifier`.

    Raises:
        UserError: An option is unknown or cannot be honoured, the mode does not allow the write, or the options
            contradict the table.

    Example:
        write(orders, "s3://lake/orders", {"hoodie.table.name": "orders", ...}, mode="append")
    """
    require_classic(frame)
    set_worker_python(frame.sparkSession)
    given = {**(options or {})}
    if path is not None:
        if any(key.lower() == PATH for key in given):
            raise UserError("'path' is an argument and an option of this write; give one of them", argument=PATH)
        given[PATH] = path
    location = next((value for key, value in given.items() if key.lower() == PATH), None)
    if not location:
        raise UserError("a write needs the table's location: write(frame, path, options)", argument=PATH)
    job = parse_write_job(given)
    target = open_target(location, job, SaveMode.of(mode), to_arrow_schema(frame.schema))
    if not isinstance(target, JobTarget):
        return target
    if not batch_id:
        target.log_unused()
    if batch_id is None:
        return target.write(frame)
    key = stream_key(frame, job.identifier)
    return write_once(
        target.table, key, batch_id, lambda extra, check: target.write(frame, extra=extra, precondition=check)
    )


def register(spark: SparkSession) -> None:
    """Register `format("lakehouse")` with a session that `job_session` did not create.

    On Spark 3.5 the format does not exist: Spark raises `Failed to find the data source: lakehouse` for it. Use `read`
    there. The function then only sets the Python of the session's workers.
    """
    require_classic(spark)
    spark_version().register(spark)


def _table(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    options = parse_source_options(given)
    table = open_table(options)
    query = with_bound(table, options.query).query
    schema = result_schema(table, query, options)
    planned = plan_read(table, read_request(options, query, schema.names))
    if isinstance(planned, Scan):
        return scan_to_spark(spark, with_stored_schemas(table, planned))
    tasks = read_tasks(planned, schema.names)

    def rows(task: ReadTask) -> Iterable[pa.RecordBatch]:
        return read_task(task)

    with own_workers(spark, planned.context.slices.budget_bytes):
        return _by_workers(spark, tasks, rows, spark_schema(schema), planned.bytes)


def _published(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    source = file_source(given)
    assert source is not None, "the caller checks that an option selects a file source"
    schema = spark.createDataFrame([], source.schema_ddl(given)).schema
    files = PlannedFiles(given, to_arrow_schema(schema))
    tasks = files.tasks()

    def rows(task: FileTask) -> Iterable[pa.RecordBatch]:
        return files.read(task)

    return _by_workers(spark, tasks, rows, schema, 0)


def _by_workers(
    spark: SparkSession,
    tasks: Sequence[ReadTask] | Sequence[FileTask],
    rows: Callable[..., Iterable[pa.RecordBatch]],
    schema: StructType,
    size: int,
) -> DataFrame:
    """Return the rows of tasks; each Spark task reads one of them in a Python worker."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from rows(tasks[number])

    return map_in_arrow(task_numbers(spark, len(tasks), size), run, schema)
