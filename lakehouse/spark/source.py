"""`spark.read.format("lakehouse")` and `spark.readStream.format("lakehouse")`.

A Python data source: planning prunes files by partition and column range from the pushed filters; workers read the
planned files with Arrow. Spark does not tell a Python source which columns a query needs, so the answer to column
pruning is to say it: `.option("columns", "a,b")`, or a schema of those columns with `.schema(...)`. Where Spark's own
vectorised scan is wanted, `Table.scan(...).to_spark(spark)` reads the same files with it.

With `.option("hoodie.datasource.query.incremental.format", "cdc")` an incremental read or a stream tells changes: op,
ts_ms, and before and after as JSON texts of the data columns (`Table.incremental(..., format="cdc")` has structs).

With `.option("published", "database.table")` a published table of a metastore is read, and no path is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.datasource import In as InFilter
from pyspark.sql.datasource import Not as NotFilter
from pyspark.sql.types import StructType

from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.operations.create.declare import require_merger
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.operations.read.cdc import (
    CDC,
    JSON_SCHEMA,
    LATEST_STATE,
    ChangeRequest,
    ChangeScan,
    as_json,
    check_format,
    plan_change_read,
)
from lakehouse.core.operations.read.event_time import event_time_bound
from lakehouse.core.operations.read.scan import EARLIEST, Scan, ScanRequest, plan_read, read_rows
from lakehouse.core.planning.cdc import FileGroupChange
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.timeline.env import Env
from lakehouse.errors import UserError, nearest
from lakehouse.model.files import FileSlice
from lakehouse.model.predicate import And, Comparison, In, Not, Predicate, StartsWith
from lakehouse.model.predicate import IsNull as IsNullPredicate
from lakehouse.spark.file_sources import PlannedFilesReader, file_source
from lakehouse.spark.scan import spark_schema
from lakehouse.spec.options.parser import parse_options

NAME = "lakehouse"
_QUERY = "hoodie.datasource.query.type"
_BEGIN = "hoodie.datasource.read.begin.instanttime"
_END = "hoodie.datasource.read.end.instanttime"
_FORMAT = "hoodie.datasource.query.incremental.format"
_AS_OF = "as.of.instant"
_AS_OF_EVENT_TIME = "as.of.event.time"
_FUNCTIONS = "allowed_functions"
_DAMAGED = "lakehouse.damaged.files"
_START_OFFSET = "hoodie.datasource.streaming.startoffset"
_KNOWN = (
    "path",
    "columns",
    _QUERY,
    _BEGIN,
    _END,
    _FORMAT,
    _AS_OF,
    _AS_OF_EVENT_TIME,
    _FUNCTIONS,
    "hoodie.datasource.streaming.startOffset",
    _DAMAGED,
)
_STORAGE = ("fs.", "aws_", "google_", "azure_", "allow_http", "max_attempts")
_SMALL_PART_BYTES = 32 * 1024 * 1024
_FIRST = "0" * 17


def register(spark: SparkSession) -> None:
    """Make the format known to a session and let Spark push filters into it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LakehouseDataSource)


@dataclass(frozen=True)
class _Part(InputPartition):
    """Some slices of a scan, read by one task."""

    scan: Scan
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True)
class _ChangePart(InputPartition):
    """One commit's changes of one file group, read by one task; `columns` are those of the answer."""

    scan: ChangeScan
    change: FileGroupChange | None
    columns: tuple[str, ...]


class LakehouseDataSource(DataSource):
    """The data source; options are Hudi's own names where it has them."""

    @classmethod
    def name(cls) -> str:
        """Return the name after `format`."""
        return NAME

    def schema(self) -> StructType | str:
        """Return meta and data columns (of changes theirs), or those that option `columns` names."""
        source = file_source(self.options)
        if source is not None:
            return source.schema_ddl(self.options)
        return spark_schema(_schema(_open(self.options), self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        if file_source(self.options) is not None:
            return PlannedFilesReader(self.options, schema, _predicate)
        return LakehouseReader(dict(self.options), tuple(schema.names))

    def streamReader(self, schema: StructType) -> LakehouseStreamReader:
        """Return the stream reader."""
        if file_source(self.options) is not None:
            raise UserError("a published table is read as it is, not as a stream; stream the table that it shows")
        return LakehouseStreamReader(dict(self.options), tuple(schema.names))


class LakehouseReader(DataSourceReader):
    """One batch query: filters in, parts out, Arrow batches from the parts."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options, self._columns = options, columns
        self._tells_changes = _tells_changes(options)
        if self._tells_changes:
            _check_changes(options, columns)
        self._pushed: tuple[Predicate, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters we can apply exactly; yield the others back."""
        taken = []
        for pushed in filters:
            # Changes have nothing that a filter could spare us: the columns of rows are inside of JSON texts.
            predicate = None if self._tells_changes else _predicate(pushed)
            if predicate is None:
                yield pushed
            else:
                taken.append(predicate)
        self._pushed = tuple(taken)

    def partitions(self) -> list[InputPartition]:
        """Plan the read; small files share a task."""
        if self._tells_changes:
            given = {key.lower(): value for key, value in self._options.items()}
            return _change_parts(_open(self._options), self._columns, given.get(_BEGIN), given.get(_END))
        request = _request(self._options, self._columns, And(self._pushed) if self._pushed else None)
        table = _open(self._options)
        event_time = next((v for k, v in self._options.items() if k.lower() == _AS_OF_EVENT_TIME), None)
        if event_time is not None:
            request = replace(request, completed_up_to=event_time_bound(table, event_time))
        return _parts(plan_read(table, request))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        return _read(partition)


class LakehouseStreamReader(DataSourceStreamReader):
    """A stream of commits: the offset is the completion time of the last commit delivered."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options, self._columns = options, columns
        self._tells_changes = _tells_changes(options)
        if self._tells_changes:
            _check_changes(options, columns)
        _request(options, columns, None)

    def initialOffset(self) -> dict[str, str]:
        """Return where a new query starts: option startOffset, `earliest` (default), `latest` or a completion time."""
        start = next((v for k, v in self._options.items() if k.lower() == _START_OFFSET), EARLIEST)
        if start == "latest":
            return self.latestOffset()
        return {"completed": _FIRST if start == EARLIEST else start}

    def latestOffset(self) -> dict[str, str]:
        """Return the completion time of the newest commit: one listing."""
        completed = _open(self._options).timeline.writes().by_completion()
        return {"completed": completed[-1].completion if completed else _FIRST}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Plan the rows of the commits completed in (start, end]."""
        if start["completed"] >= end["completed"]:
            return []
        begin, upto = start["completed"], end["completed"]
        if self._tells_changes:
            return _change_parts(_open(self._options), self._columns, begin, upto)
        skips = _skips_damage(self._options)
        request = ScanRequest(columns=self._columns, incremental=True, begin=begin, end=upto, skips_damage=skips)
        return _parts(plan_read(_open(self._options), request))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        return _read(partition)


def _open(options: Mapping[str, str]) -> LoadedTable:
    given = {key.lower(): value for key, value in options.items()}
    known = [name.lower() for name in _KNOWN]
    for key in given:
        if key not in known and not key.startswith(_STORAGE):
            raise UserError(f'option {key!r} is unknown to format("{NAME}").{nearest(key, _KNOWN)}', option=key)
    if "path" not in given:
        raise UserError(f'format("{NAME}") needs the table\'s location: .load(location)')
    storage = {key: value for key, value in options.items() if key.lower().startswith(_STORAGE)}
    functions = tuple(name.strip() for name in given.get(_FUNCTIONS, "").split(",") if name.strip())
    table = load_table(Env(storage=open_storage(given["path"], storage)), allowed_functions=functions)
    require_merger(table.config)
    return table


def _schema(table: LoadedTable, options: Mapping[str, str]) -> pa.Schema:
    stored = table_schema(table)
    full = with_meta_fields(stored if stored is not None else pa.schema([]))
    full = JSON_SCHEMA if _tells_changes(options) else full
    columns = _chosen(options)
    if columns is None:
        return full
    for name in columns:
        if name not in full.names:
            place = "the changes" if full is JSON_SCHEMA else "the table"
            raise UserError(f"column {name!r} is not in {place}.{nearest(name, full.names)}", column=name)
    return pa.schema([full.field(name) for name in columns])


def _chosen(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = next((value for key, value in options.items() if key.lower() == "columns"), "")
    return tuple(name.strip() for name in text.split(",") if name.strip()) or None


def _tells_changes(options: Mapping[str, str]) -> bool:
    """Whether changes are asked for; raise UserError for a format nobody knows."""
    given = {key.lower(): value for key, value in options.items()}
    text = given.get(_FORMAT, LATEST_STATE).lower()
    check_format(text)
    return text == CDC


def _check_changes(options: Mapping[str, str], columns: tuple[str, ...]) -> None:
    given = {key.lower(): value for key, value in options.items()}
    if given.get(_QUERY, "incremental").lower() != "incremental":
        raise UserError(f"{_FORMAT}={CDC} and {_QUERY}={given[_QUERY]} contradict; changes are an incremental query")
    for name in columns:
        if name not in JSON_SCHEMA.names:
            raise UserError(f"changes have the columns {', '.join(JSON_SCHEMA.names)}, not {name!r}", column=name)


def _request(options: Mapping[str, str], columns: tuple[str, ...], where: Predicate | None) -> ScanRequest:
    given = {key.lower(): value for key, value in options.items()}
    query = given.get(_QUERY, "snapshot").lower()
    if query not in ("snapshot", "read_optimized", "incremental"):
        raise UserError(f"{_QUERY}={query!r}: must be snapshot, read_optimized or incremental")
    if _AS_OF_EVENT_TIME in given and (query == "incremental" or _AS_OF in given):
        other = f"{_QUERY}=incremental" if query == "incremental" else f"{_AS_OF}={given[_AS_OF]}"
        raise UserError(f"{_AS_OF_EVENT_TIME}={given[_AS_OF_EVENT_TIME]} and {other} contradict; give one of them")
    asked = ScanRequest(columns=columns, where=where, skips_damage=_skips_damage(options))
    if query == "incremental":
        return replace(asked, incremental=True, begin=given.get(_BEGIN), end=given.get(_END))
    if _BEGIN in given or _END in given:
        raise UserError(f"{_BEGIN} and {_END} need {_QUERY}=incremental")
    optimized = query == "read_optimized"
    return replace(asked, as_of=given.get(_AS_OF), read_optimized=optimized)


def _skips_damage(options: Mapping[str, str]) -> bool:
    given = {key.lower(): value for key, value in options.items()}
    chosen = {_DAMAGED: given[_DAMAGED]} if _DAMAGED in given else {}
    return parse_options(chosen).write.skips_damage


def _parts(scan: Scan) -> list[InputPartition]:
    parts: list[InputPartition] = []
    slices: list[FileSlice] = []
    size = 0
    for file_slice in scan.plan.slices:
        slices.append(file_slice)
        size += (file_slice.base.size_bytes if file_slice.base else 0) + file_slice.total_log_bytes
        if size >= _SMALL_PART_BYTES:
            parts.append(_Part(scan=scan, slices=tuple(slices)))
            slices, size = [], 0
    if slices:
        parts.append(_Part(scan=scan, slices=tuple(slices)))
    # Spark reads a source without parts through one task that gets no part at all.
    return parts or [_Part(scan=scan, slices=())]


def _change_parts(
    table: LoadedTable, columns: tuple[str, ...], begin: str | None, end: str | None
) -> list[InputPartition]:
    scan = plan_change_read(table, ChangeRequest(begin=begin, end=end))
    # Spark reads a source without parts through one task that gets no part at all.
    changes: tuple[FileGroupChange | None, ...] = scan.changes or (None,)
    return [_ChangePart(scan=replace(scan, changes=()), change=change, columns=columns) for change in changes]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _ChangePart):
        if partition.change is not None:
            for batch in partition.scan.read(partition.change):
                yield as_json(batch).select(list(partition.columns))
        return
    assert isinstance(partition, _Part)
    for file_slice in partition.slices:
        yield from read_rows(partition.scan.context, file_slice, partition.scan.plan)


def _predicate(pushed: Filter) -> Predicate | None:
    """Return a Spark filter as a predicate, or None if it is of a kind we do not apply."""
    if isinstance(pushed, NotFilter):
        inner = _predicate(pushed.child)
        return None if inner is None else Not(inner)
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(pushed, IsNull):
        return IsNullPredicate(column)
    if isinstance(pushed, IsNotNull):
        return Not(IsNullPredicate(column))
    if isinstance(pushed, InFilter):
        return None if None in pushed.value else In(column, tuple(pushed.value))
    if isinstance(pushed, StringStartsWith):
        return StartsWith(column, pushed.value)
    operator = _OPERATORS.get(type(pushed))
    value = getattr(pushed, "value", None)
    return None if operator is None or value is None else Comparison(column, operator, value)


_OPERATORS: dict[type, Any] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
