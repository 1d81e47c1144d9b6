"""A dataset as a lazy frame of Polars, with the rules of Polars for conditions.

`polars.scan_pyarrow_dataset` passes a condition to the dataset as an expression of Arrow, which differs for NaN and for
nulls in `~is_in`. Here Polars itself filters the rows, and the expression of Arrow is only used to prune.

The native reader of Polars reads the files whose rows it returns exactly (`read.plain_files`), after the condition has
pruned them. It does not get the condition, which Polars evaluates on the rows: the reader computes `i + 1` of the
bounds of a row group without regard to overflow, and fails for `is_in` with a null. All other slices are streamed by
the dataset.

Polars has no public call that translates a condition. But it translates the conditions on a dataset, so a dataset
without rows receives the translated condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.plain_files import divided
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.table.dataset import TableDataset
from lakehouse.core.table.polars_batches import polars_batches
from lakehouse.errors import UserError

#: Paths are names of files, whose columns are all stored in them.
_OPTIONS = {"hive_partitioning": False, "glob": False}


def polars_frame(dataset: TableDataset) -> Any:
    """Return a dataset as a `polars.LazyFrame`; raise UserError if Polars is not installed."""
    try:
        polars, plugins = import_module("polars"), import_module("polars.io.plugins")
    except ImportError as error:
        raise UserError(f"to_polars() needs polars ({error}): pip install polars") from error

    # parameters: those that Polars passes to a source
    def source(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        columns = list(dataset.schema.names) if with_columns is None else with_columns
        read = columns if predicate is None else list(dict.fromkeys((*columns, *predicate.meta.root_names())))
        pruning = None if predicate is None else _arrow_condition(dataset.schema, predicate)
        missing = n_rows
        for frame in frames(read, columns, predicate, pruning, batch_size):
            frame = frame if missing is None else frame.head(missing)
            if frame.height:
                yield frame
            if missing is not None:
                missing -= frame.height
                if missing <= 0:
                    return

    # parameters: the columns to read and to return, and the condition for rows and for files
    def frames(
        read: list[str], columns: list[str], predicate: Any, pruning: Any, batch_size: int | None
    ) -> Iterator[Any]:
        """Yield the rows that meet the condition."""
        scanner = dataset.scanner(read, batch_size=batch_size)
        planned: Scan | ChangeScan | None = scanner.pruned_plan(pruning)
        if read and isinstance(planned, Scan) and not scanner.has_condition:
            parts = divided(planned, is_filtered_later=True)
            files = _parquet_frame(parts.paths, {name: schema[name] for name in read})
            if files is not None:
                # Polars evaluates the condition in all its threads, and only the result passes through Python.
                yield from polars_batches(_chosen(files, columns, predicate), filters_rows_itself=True)
                planned = parts.rest
        if planned is not None:
            for frame in map(polars.from_arrow, scanner.planned_batches(planned)):
                yield _chosen(frame, columns, predicate)

    schema = polars.from_arrow(dataset.schema.empty_table()).schema
    return plugins.register_io_source(source, schema=schema)


def _parquet_frame(paths: Sequence[str], columns: Mapping[str, Any]) -> Any:
    """Return a lazy frame of files whose columns have these types; None without files, or for other types."""
    if not paths:
        return None
    if not _has_types(paths[0], tuple(columns.items())):
        return None
    # A given schema saves a read of the first footer. Later files may have more columns, which the read does not need.
    options = {**_OPTIONS, "schema": dict(columns), "extra_columns": "ignore"}
    return import_module("polars").scan_parquet(list(paths), **options)


@lru_cache(maxsize=256)
def _has_types(path: str, columns: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether Polars reads these columns of a base file, which never changes, with these types."""
    polars = import_module("polars")
    stored = polars.scan_parquet(path, **_OPTIONS).select([name for name, _ in columns]).collect_schema()
    return bool(stored == polars.Schema(columns))


def _chosen(frame: Any, columns: list[str], predicate: Any) -> Any:
    """Return the result columns in the rows that meet the condition."""
    return frame.select(columns) if predicate is None else frame.filter(predicate).select(columns)


def _arrow_condition(schema: pa.Schema, predicate: Any) -> pc.Expression | None:
    """Return the part of a condition that Polars can translate for a dataset; None if there is none."""
    probe = _Probe(schema.empty_table())
    import_module("polars").scan_pyarrow_dataset(probe).filter(predicate).collect(engine="in-memory")
    return probe.condition


class _Probe(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset without rows that remembers the condition of its last read."""

    condition: pc.Expression | None = None

    def __init__(self, empty: pa.Table) -> None:
        super().__init__(empty)

    def to_batches(self, **arguments: Any) -> Iterator[pa.RecordBatch]:
        """Return no rows."""
        self.condition = arguments.get("filter")
        return iter(())

    def to_table(self, **arguments: Any) -> pa.Table:
        """Return no rows."""
        self.condition = arguments.get("filter")
        names = arguments.get("columns")
        empty = self.schema.empty_table()
        return empty if names is None else empty.select(names)
