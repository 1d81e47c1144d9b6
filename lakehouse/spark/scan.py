"""Reads a planned scan as a DataFrame: base files by Spark's Parquet reader, slices with log files by Arrow workers.

Workers read everything if Spark has no connector for the object store of the table (see `missing_connector`).

Of large base files with few log entries, Spark's reader reads the rows that no log changes (see `changed_rows`).

Files whose commit declared other types than the table's are read with their stored schema and cast. So type changes
that Spark's reader does not support, such as int to string, work too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from heapq import heapreplace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.expressions.column_path import root_of
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.operations.read.row_reader import read_rows
from lakehouse.core.operations.read.scan import Scan, stored_data_schema
from lakehouse.core.rows.stored_names import is_renamed_in, nested_evolved, stored_name, without_stored_names
from lakehouse.core.state.data_files import file_paths
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.storage.hadoop_connectors import remedy
from lakehouse.core.storage.local_links import require_no_links
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.instant import METADATA_BOOTSTRAP
from lakehouse.model.predicate import columns_of
from lakehouse.spark.changed_rows import changed_rows, few_changes
from lakehouse.spark.conditions import condition, is_evaluated_by_workers
from lakehouse.spark.engine import own_workers
from lakehouse.spark.workers import map_in_arrow, task_numbers

log = logging.getLogger(__name__)

_TASKS_PER_CORE = 2
_TASK_BYTES = 64 * 1024 * 1024


def scan_to_spark(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return the planned rows as a DataFrame."""
    columns = scan.plan.schema.names
    used = () if scan.plan.residual is None else columns_of(scan.plan.residual)
    extra = dict.fromkeys(root_of(name, scan.table_schema) for name in used)
    names = [*columns, *(name for name in extra if name not in columns)]
    schema = pa.schema([scan.table_schema.field(name) for name in names])
    by_workers = scan.plan.residual is not None and is_evaluated_by_workers(scan.plan.residual, scan.table_schema)
    slices = scan.plan.slices
    by_workers = by_workers or (len(slices) > 0 and _lacks_connector(spark, scan.storage))
    is_merged = (slices.log_counts > 0) | by_workers | _has_other_fields(slices, schema)
    is_patched = np.zeros(len(slices), bool) if by_workers else few_changes(scan) & ~_has_other_fields(slices, schema)
    plain, patched = slices.filter(~is_merged), slices.filter(is_patched)
    base, frames = _base_frames(spark, scan, plain, schema), []
    if len(patched):
        result = spark_schema(scan.plan.schema)
        changes = changed_rows(spark, scan, patched, result, spark.sparkContext.defaultParallelism)
        base += [changes.unchanged(frame) for frame in _base_frames(spark, scan, patched.base_only(), schema)]
        frames.append(changes.rows)
    if base:
        frame = reduce(DataFrame.unionByName, base)
        if scan.plan.residual is not None:
            frame = frame.where(condition(scan.plan.residual, scan.table_schema))
        # A selection needs ten calls to the JVM per column, so it is made only if needed.
        frames.append(frame if names == columns else frame.drop(*[name for name in names if name not in columns]))
    merged = slices.filter(is_merged & ~is_patched)
    if len(merged):
        frames.append(_merge(spark, scan, merged))
    if not frames:
        return spark.createDataFrame([], spark_schema(scan.plan.schema))
    return reduce(DataFrame.unionByName, frames)


def missing_connector(spark: SparkSession, storage: Storage) -> str | None:
    """Return the problem of Spark's Parquet reader with a storage and its remedy, or None if it can read.

    No request is sent to the storage. Paths of this machine and HDFS need no connector.
    """
    try:
        scheme, separator, _ = storage.native("x").partition("://")
    except UserError as error:
        # Spark cannot address a container without an account.
        return str(error)
    if not separator:
        return None
    java: Any = spark
    jvm, conf = java._jvm, java._jsparkSession.sessionState().newHadoopConf()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JError:
        hadoop = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
        return f"Spark has no Hadoop connector for {scheme}://; {remedy(scheme, hadoop)}"
    return None


def _lacks_connector(spark: SparkSession, storage: Storage) -> bool:
    """Return whether Spark's Parquet reader cannot open a storage; if so, log the package that makes reads faster."""
    problem = missing_connector(spark, storage)
    if problem is not None:
        log.warning("%s: Python workers read the files, which is slower. %s", storage.root, problem)
    return problem is not None


def _merge(spark: SparkSession, scan: Scan, slices: FileSlices) -> DataFrame:
    """Return the rows of slices with log files, merged by Arrow in workers; small slices share a task."""
    context, plan = scan.context, scan.plan.without_slices()
    shares = slice_shares(slices, spark.sparkContext.defaultParallelism)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file_slice in shares[number]:
                    yield from read_rows(context, file_slice, plan)

    schema = spark_schema(plan.schema)
    numbers = task_numbers(spark, len(shares), slices.bytes)
    with own_workers(spark, context.budget_bytes):
        return map_in_arrow(numbers, read, schema)


def slice_shares(slices: FileSlices, cores: int) -> list[FileSlices]:
    """Distribute slices over tasks of similar size, so that all cores are used and no task is much too large."""
    sizes = slices.sizes
    tasks = max(_TASKS_PER_CORE * cores, -(-int(sizes.sum()) // _TASK_BYTES))
    loads = [(0, number) for number in range(min(tasks, len(slices)))]
    shares: list[list[int]] = [[] for _ in loads]
    # Assign slices by descending size, each to the task with the minimum load.
    for row in np.argsort(-sizes, kind="stable").tolist():
        load, number = loads[0]
        shares[number].append(row)
        heapreplace(loads, (load + int(sizes[row]), number))
    return [slices.take(np.array(share, np.int64)) for share in shares]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    return from_arrow_schema(without_stored_names(schema), prefer_timestamp_ntz=True)


def _has_other_fields(slices: FileSlices, schema: pa.Schema) -> np.ndarray:
    """Return the mask of slices whose base file has other names for fields inside of a column, or is a skeleton file.

    Spark cannot convert structs by names, or join a skeleton file with its source, so workers read these slices.
    """
    if not len(slices):
        return np.zeros(0, bool)
    nested = pa.schema([field.remove_metadata() for field in schema if nested_evolved(field)])
    instants = slices.base_instants.to_pylist()
    differs = {
        instant: instant == METADATA_BOOTSTRAP or (len(nested) > 0 and is_renamed_in(nested, instant))
        for instant in set(instants)
    }
    return np.array([differs[instant] for instant in instants], bool)


@dataclass(frozen=True)
class _Stored:
    """The columns of some base files, with their names and types in the files.

    Attributes:
        schema: The columns that the files have.
        names: The name in the files for each column of the result; None if they lack it.
    """

    schema: pa.Schema
    names: tuple[str | None, ...]


def _stored(scan: Scan, instant: str, schema: pa.Schema) -> _Stored:
    """Return the columns as they are in a commit's files; columns that the commit does not declare keep their type."""
    declared = stored_data_schema(scan, instant)
    stored = pa.schema([]) if declared is None else with_meta_fields(declared)
    names = tuple(stored_name(field, instant) for field in schema)
    fields = [
        pa.field(name, stored.field(name).type if name in stored.names else field.type)
        for field, name in zip(schema, names, strict=True)
        if name is not None
    ]
    # A read of no columns would have no rows.
    return _Stored(pa.schema(fields or [(META_COLUMNS[0], pa.string())]), names)


def _base_frames(spark: SparkSession, scan: Scan, slices: FileSlices, schema: pa.Schema) -> list[DataFrame]:
    """Return the rows of base files: one DataFrame for each schema with which files were stored."""
    groups: dict[_Stored, list[pa.Table]] = {}
    for instant in pc.unique(slices.files.column("instant")).to_pylist():
        files = slices.files.filter(pc.equal(slices.files.column("instant"), instant))
        groups.setdefault(_stored(scan, instant, schema), []).append(files)
    return [_read(spark, scan, *group, schema) for group in groups.items()]


def _read(spark: SparkSession, scan: Scan, stored: _Stored, files: list[pa.Table], schema: pa.Schema) -> DataFrame:
    relative = [path for table in files for path in file_paths(table).to_pylist()]
    require_no_links(scan.storage.root, relative)
    paths = [scan.storage.native(path) for path in relative]
    # Do not infer partition columns from directory names: the files contain the partition columns.
    reader = spark.read.schema(spark_schema(stored.schema)).option("recursiveFileLookup", "true")
    frame = reader.parquet(*paths)
    if stored.schema.names == schema.names and stored.schema.types == schema.types:
        return frame
    columns = []
    for field, name in zip(spark_schema(schema).fields, stored.names, strict=True):
        column = F.lit(None) if name is None else F.col(f"`{name}`")
        columns.append(column.cast(field.dataType).alias(field.name))
    return frame.select(*columns)
