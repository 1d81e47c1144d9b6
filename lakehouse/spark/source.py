"""The data source behind `spark.read.format("lakehouse")` and `spark.readStream.format("lakehouse")`.

Planning prunes files by the pushed filters: by partition values and column ranges. Workers read the planned files with
Arrow. Spark does not pass the needed columns to a Python data source. Name them in `.option("columns", "a,b")` or
in `.schema(...)` to read only those. `Table.scan(...).to_spark(spark)` reads the same files with Spark's own Parquet
reader.

`.option("hoodie.datasource.query.incremental.format", "cdc")` makes an incremental read or a stream return changes: op,
ts_ms, and the rows before and after as JSON text. `Table.incremental(..., format="cdc")` returns them as structs.

`.option("published", "database.table")` reads a published table of a metastore (see `file_sources`); no path is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.operations.create.declare import require_merger
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.operations.read.cdc import JSON_SCHEMA, ChangeScan, as_json
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental, ScanRequest
from lakehouse.core.operations.read.scan import Scan, read_rows
from lakehouse.core.planning.cdc import FileGroupChange
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError, nearest
from lakehouse.model.predicate import And, Predicate
from lakehouse.spark.file_sources import PlannedFilesReader, file_source
from lakehouse.spark.filters import to_predicate
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.source_options import NAME, SourceOptions, parse_source_options
from lakehouse.spark.workers import prepare_for_reuse

_SMALL_TASK_BYTES = 32 * 1024 * 1024
_BEFORE_FIRST_COMMIT = "0" * 17


def register(spark: SparkSession) -> None:
    """Register the format with a session and let Spark push filters into it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
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
    """The data source; options have Hudi's names where Hudi has such an option."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return NAME

    def schema(self) -> StructType | str:
        """Return the meta and data columns, or the columns of changes; only those that option `columns` names."""
        source = file_source(self.options)
        if source is not None:
            return source.schema_ddl(self.options)
        options = parse_source_options(self.options)
        return spark_schema(_result_schema(_open(options), options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        if file_source(self.options) is not None:
            return PlannedFilesReader(self.options, schema, to_predicate)
        return LakehouseReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> LakehouseStreamReader:
        """Return the reader of a stream."""
        if file_source(self.options) is not None:
            raise UserError("a published table cannot be read as a stream; stream the table that it publishes")
        return LakehouseStreamReader(dict(self.options), tuple(schema.names))


class LakehouseReader(DataSourceReader):
    """Plans one batch query into tasks and reads them as Arrow batches."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._columns = parse_source_options(options), tuple(schema.names)
        self._schema = to_arrow_schema(schema)
        if self._options.reads_changes:
            _check_change_columns(self._columns)
        self._pushed: tuple[Predicate, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that the reader applies exactly; yield the others to Spark."""
        applied = []
        for pushed in filters:
            # The columns of changed rows are inside JSON text, so filters cannot reduce the files of changes.
            predicate = None if self._options.reads_changes else to_predicate(pushed, self._schema)
            if predicate is None:
                yield pushed
            else:
                applied.append(predicate)
        self._pushed = tuple(applied)

    def partitions(self) -> list[InputPartition]:
        """Plan the read; slices with small files share a task."""
        request = ScanRequest(query=self._options.query)
        if not self._options.reads_changes:
            request = replace(
                request,
                columns=self._columns,
                where=And(self._pushed) if self._pushed else None,
                skips_damage=self._options.skips_damage,
            )
        return _tasks(plan_read(_open(self._options), request), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition)


class LakehouseStreamReader(DataSourceStreamReader):
    """Reads a stream of commits; the offset is the completion time of the last commit that was delivered."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options, self._columns = parse_source_options(options, streaming=True), columns
        if self._options.reads_changes:
            _check_change_columns(columns)

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
        request = ScanRequest(query=Changes(begin, last))
        if not self._options.reads_changes:
            request = ScanRequest(
                query=Incremental(begin, last), columns=self._columns, skips_damage=self._options.skips_damage
            )
        return _tasks(plan_read(_open(self._options), request), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition)


def _open(options: SourceOptions) -> LoadedTable:
    env = Env(storage=open_storage(options.location, options.storage))
    table = load_table(env, allowed_functions=options.functions)
    require_merger(table.config)
    return table


def _result_schema(table: LoadedTable, options: SourceOptions) -> pa.Schema:
    stored = table_schema(table)
    full = JSON_SCHEMA if options.reads_changes else with_meta_fields(stored if stored is not None else pa.schema([]))
    if options.columns is None:
        return full
    for name in options.columns:
        if name not in full.names:
            place = "the changes" if options.reads_changes else "the table"
            raise UserError(f"column {name!r} is not in {place}.{nearest(name, full.names)}", column=name)
    return pa.schema([full.field(name) for name in options.columns])


def _check_change_columns(columns: tuple[str, ...]) -> None:
    for name in columns:
        if name not in JSON_SCHEMA.names:
            raise UserError(f"changes have the columns {', '.join(JSON_SCHEMA.names)}, not {name!r}", column=name)


def _tasks(scan: Scan | ChangeScan, columns: tuple[str, ...]) -> list[InputPartition]:
    """Divide a planned read into tasks.

    At least one task is returned: without any, Spark would start one and pass no partition to it.
    """
    if isinstance(scan, ChangeScan):
        changes: tuple[FileGroupChange | None, ...] = scan.in_order().changes or (None,)
        return [_ChangeTask(scan=replace(scan, changes=()), change=change, columns=columns) for change in changes]
    slices = scan.plan.slices
    alone = replace(scan, plan=scan.plan.without_slices(), stored_schemas={})
    # A task ends with the slice that makes it large enough.
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
