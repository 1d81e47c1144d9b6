"""TableDataset: a scan as a dataset of pyarrow, which DuckDB, Polars and others read lazily.

    scanner    check the columns and the filter; nothing is read
    plan       load the timeline, list and prune the files with the part of the filter that has an equivalent predicate
    read       each batch: the filter itself, then the columns of the result

An engine that passes a filter to a dataset does not apply it again, so each batch is filtered by Arrow with the exact
expression. The dataset reads one version of the table, however often it is used: see `PinnedRead`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
from pyarrow import acero

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.pinned_read import PinnedRead
from lakehouse.core.operations.read.row_count import commit_time_batches, count_rows
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.planning.arrow_filter import filter_columns, pruning_predicate
from lakehouse.core.planning.scan import chosen_columns
from lakehouse.core.state.file_system_view import Group
from lakehouse.errors import UnsupportedError, UserError, nearest
from lakehouse.model.display import Readable, Shown, count_text, sentence

Columns = Sequence[str] | Mapping[str, pc.Expression]
#: Options of `pyarrow.dataset.Dataset.scanner` that affect only how files are read. The memory budget decides instead.
_HINTS = ("batch_readahead", "fragment_readahead", "fragment_scan_options", "use_threads", "cache_metadata")
_WAY_OUT = "use to_batches(), to_table() or scanner().to_reader() of the dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetScanner(Readable):
    """A read of a dataset with columns and a filter. Each method that returns rows reads the files again.

    Attributes:
        read: The version to read.
        dataset_schema: The columns of the dataset.
        projected_schema: The columns of the result.
        projection: Expressions by name of the column of the result; None for columns of the dataset.
        filter: The condition on rows; None for all rows.
        batch_size: The maximum number of rows per batch; None for the batches of the scan.
    """

    read: PinnedRead
    dataset_schema: pa.Schema
    projected_schema: pa.Schema
    projection: Mapping[str, pc.Expression] | None = None
    filter: pc.Expression | None = None
    batch_size: int | None = None

    def plan(self) -> Scan | ChangeScan:
        """Return the planned read, with the columns of the result and of the filter; no data file is opened."""
        return self._plan(self.filter)

    def pruned_plan(self, condition: pc.Expression | None) -> Scan | ChangeScan:
        """Return the planned read of at least the rows that meet a further condition, which only prunes files.

        The caller filters the rows. It may have other rules for NaN than Arrow.
        """
        conditions = [each for each in (self.filter, condition) if each is not None]
        return self._plan(reduce(and_, conditions) if conditions else None)

    @property
    def has_condition(self) -> bool:
        """Whether the rows must meet a condition of the dataset or its scan."""
        return self.filter is not None or self.read.request.where is not None

    def planned_batches(self, planned: Scan | ChangeScan) -> Iterator[pa.RecordBatch]:
        """Return the rows of a planned read as record batches."""
        return self._batches(planned.batches())

    def _plan(self, pruning: pc.Expression | None) -> Scan | ChangeScan:
        names = _read_columns(self.dataset_schema, self.projection, self.projected_schema, self.filter)
        # A read of no columns has no rows. This column has few distinct values.
        names = names or [META_COLUMNS[0] if META_COLUMNS[0] in self.dataset_schema.names else self._first]
        where = None
        if pruning is not None and self.read.table_schema is not None:
            where = pruning_predicate(pruning, self.read.table_schema)
        return self.read.plan(names, where)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Plan the read, and return its rows as record batches. Closing the iterator closes all files."""
        planned = self.plan()
        if isinstance(planned, Scan) and planned.plan.residual is None and planned.schema.names == [META_COLUMNS[0]]:
            return self._batches(commit_time_batches(planned))
        return self._batches(planned.batches())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Return all rows as one table."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows; reading stops after them."""
        rows: list[pa.RecordBatch] = []
        missing = num_rows
        batches = self.to_batches() if num_rows > 0 else iter(())
        for batch in batches:
            rows.append(batch.slice(0, missing))
            missing -= rows[-1].num_rows
            if missing <= 0:
                break
        _close(batches)
        return pa.Table.from_batches(rows, self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of rows. Without a condition, only footers of files without logs are read."""
        narrow = replace(self, projection={}, projected_schema=pa.schema([]), batch_size=None)
        if self.filter is None:
            planned = narrow.plan()
            if isinstance(planned, Scan):
                return count_rows(planned)
        return sum(batch.num_rows for batch in narrow.to_batches())

    @property
    def _first(self) -> str:
        return str(self.dataset_schema.names[0])

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = self.projected_schema.names
        try:
            for batch in batches:
                if self.filter is None and self.projection is None:
                    rows = pa.Table.from_batches([batch]).select(names)
                else:
                    rows = _evaluated(batch, self.filter, self.projection).select(names)
                if rows.num_rows:
                    yield from rows.to_batches(max_chunksize=self.batch_size)
        finally:
            _close(batches)

    def _shown(self) -> Shown:
        columns = count_text(len(self.projected_schema), "column")
        return Shown(sentence("scanner", columns, "" if self.filter is None else f"filter {self.filter}"))


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """The rows of a scan as a dataset of pyarrow; see `TableScan.to_pyarrow_dataset`.

    Code of Arrow in C++ that would read the files of a dataset without its scanner gets an error, because Arrow cannot
    merge log files. Therefore the base class has one file, which cannot be opened.
    """

    def __init__(self, read: PinnedRead, filters: tuple[pc.Expression, ...] = ()) -> None:
        """Make a dataset of a version of a table, whose rows meet all filters."""
        files = fs.PyFileSystem(_NoFiles())
        file_format = ds.ParquetFileFormat()
        fragment = file_format.make_fragment(read.table.env.storage.root, filesystem=files)
        super().__init__([fragment], read.schema, file_format, files)
        self._read, self._filters = read, filters

    # parameters: those of pyarrow.dataset.Dataset.scanner
    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> DatasetScanner:
        """Return a read of some columns and rows; nothing is read yet.

        Args:
            columns: Names of columns, or expressions by name; all columns by default.
            filter: A condition on the rows.
            batch_size: The maximum number of rows per record batch.
            options: The options of pyarrow that affect how files are read; they have no effect here.

        Raises:
            UserError: The dataset lacks a column, or an argument does not exist.
        """
        _check_options(options)
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size={batch_size}: give a number of rows from 1 on", argument="batch_size")
        filters = (*self._filters, *(() if filter is None else (filter,)))
        for expression in filters:
            if not isinstance(expression, pc.Expression):
                kind = type(expression).__name__
                raise UserError(f"filter is of type {kind}; give an expression, such as pc.field('id') == 1")
            chosen_columns(self.schema, filter_columns(expression) or None)
            _evaluated_schema(self.schema, expression, None)
        if columns is None or isinstance(columns, Mapping):
            projected = _evaluated_schema(self.schema, None, columns)
        else:
            projected = chosen_columns(self.schema, list(columns)) if len(columns) else pa.schema([])
        return DatasetScanner(
            read=self._read,
            dataset_schema=self.schema,
            projected_schema=projected,
            projection=dict(columns) if isinstance(columns, Mapping) else None,
            filter=reduce(and_, filters) if filters else None,
            batch_size=batch_size,
        )

    def to_batches(self, columns: Columns | None = None, **arguments: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows as record batches; the arguments are those of `scanner`."""
        return self.scanner(columns, **arguments).to_batches()

    def to_table(self, columns: Columns | None = None, **arguments: Any) -> pa.Table:
        """Return the rows as one table; the arguments are those of `scanner`."""
        return self.scanner(columns, **arguments).to_table()

    def head(self, num_rows: int, columns: Columns | None = None, **arguments: Any) -> pa.Table:
        """Return the first rows; the other arguments are those of `scanner`."""
        return self.scanner(columns, **arguments).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **arguments: Any) -> int:
        """Return the number of rows; the other arguments are those of `scanner`."""
        return self.scanner(filter=filter, **arguments).count_rows()

    def filter(self, expression: pc.Expression) -> TableDataset:
        """Return a dataset with the rows that also meet a condition."""
        return TableDataset(self._read, (*self._filters, expression))

    def take(self, indices: Any, columns: Columns | None = None, **arguments: Any) -> pa.Table:
        """Return the rows at these positions; all rows are read into memory."""
        return self.to_table(columns, **arguments).take(indices)

    def sort_by(self, sorting: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the rows in an order; all rows are read into memory."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: Any, keys: Any, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the rows joined with those of another dataset; all rows are read into memory."""
        right = right_dataset.to_table()
        return ds.InMemoryDataset(self.to_table().join(right, keys, *arguments, **options))

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the rows joined with the nearest rows of another dataset; all rows are read into memory."""
        right = right_dataset.to_table()
        return ds.InMemoryDataset(self.to_table().join_asof(right, *arguments, **options))

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[TableFragment]:
        """Return one fragment with all rows, which DataFusion scans. A filter only chooses fragments, as in pyarrow."""
        del filter
        return iter([TableFragment(dataset=self)])

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise UnsupportedError."""
        raise _unsupported("its schema is the schema of the table")

    @property
    def files(self) -> list[str]:
        """Raise UnsupportedError: files alone have no rows if log files change them."""
        raise _unsupported("its files cannot be read one by one")

    def __reduce__(self) -> NoReturn:
        raise _unsupported("it cannot be sent to another process; send the location of the table")

    @property
    def read(self) -> PinnedRead:
        """The version that the dataset reads."""
        return self._read

    def without(self, groups: frozenset[Group]) -> TableDataset:
        """Return a dataset without the rows of some file groups."""
        return TableDataset(replace(self._read, excluded=groups), self._filters)

    def __repr__(self) -> str:
        table = self._read.table
        return sentence(f"dataset of {table.config.name}", count_text(len(self.schema), "column"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFragment(Readable):
    """The rows of a dataset as its only fragment: files alone have no rows if log files change them."""

    dataset: TableDataset

    @property
    def physical_schema(self) -> pa.Schema:
        """The columns of the dataset."""
        return self.dataset.schema

    def scanner(
        self, schema: pa.Schema | None = None, columns: Columns | None = None, **arguments: Any
    ) -> DatasetScanner:
        """Return a read of some columns and rows; `arguments` are those of `TableDataset.scanner`.

        `schema` must be the schema of the dataset.
        """
        if schema is not None and not schema.equals(self.dataset.schema):
            raise _unsupported("its schema is the schema of the table")
        return self.dataset.scanner(columns, **arguments)

    def _shown(self) -> Shown:
        return Shown(f"fragment of {self.dataset!r}")


class _NoFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system whose files cannot be opened."""

    def _refuse(self, *arguments: Any) -> NoReturn:
        del arguments
        raise NotImplementedError(f"Arrow cannot read the files of a lakehouse table; {_WAY_OUT}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoFiles)

    def __hash__(self) -> int:
        return hash(_NoFiles)

    def get_type_name(self) -> str:
        """Return the name of the file system."""
        return "lakehouse"

    def normalize_path(self, path: str) -> str:
        """Return the path."""
        return path

    get_file_info = get_file_info_selector = open_input_file = open_input_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def _unsupported(reason: str) -> UnsupportedError:
    return UnsupportedError(f"a dataset of a table merges log files when it is read, so {reason}; {_WAY_OUT}")


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _HINTS and not (name == "memory_pool" and value is None):
            raise UserError(
                f"scanner(): unknown argument {name!r}.{nearest(name, _HINTS)} Arguments are columns, filter, "
                f"batch_size, {', '.join(_HINTS)}",
                argument=name,
            )


def _read_columns(
    schema: pa.Schema,
    projection: Mapping[str, pc.Expression] | None,
    projected: pa.Schema,
    condition: pc.Expression | None,
) -> list[str]:
    """Return the columns of the dataset that a result and a filter need, in the order of the dataset."""
    names = set(projected.names) if projection is None else set()
    for expression in (*(projection or {}).values(), *(() if condition is None else (condition,))):
        columns = filter_columns(expression)
        if columns is None:
            return list(schema.names)
        names |= set(columns)
    return [name for name in schema.names if name in names]


def _evaluated(
    batch: pa.RecordBatch, condition: pc.Expression | None, projection: Mapping[str, pc.Expression] | None
) -> pa.Table:
    """Return the rows of a batch that meet a condition, with the columns of a projection."""
    nodes = [acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))]
    if condition is not None:
        nodes.append(acero.Declaration("filter", acero.FilterNodeOptions(condition)))
    if projection:
        options = acero.ProjectNodeOptions(list(projection.values()), list(projection))
        nodes.append(acero.Declaration("project", options))
    # The files are read by several threads already. One thread keeps the order of the rows.
    rows = acero.Declaration.from_sequence(nodes).to_table(use_threads=False)
    return rows if projection is None or projection else rows.select([])


def _evaluated_schema(
    schema: pa.Schema, condition: pc.Expression | None, projection: Mapping[str, pc.Expression] | None
) -> pa.Schema:
    """Return the columns of a result; raise UserError if an expression does not fit the columns."""
    if condition is None and projection is None:
        return schema
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    try:
        return _evaluated(empty, condition, projection).schema
    except (pa.ArrowException, TypeError) as error:
        raise UserError(
            f"an expression does not fit the dataset, whose columns are {', '.join(schema.names)}: {error}"
        ) from error


def _close(batches: Iterator[pa.RecordBatch]) -> None:
    """Close the files of an iterator that is a generator."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()
