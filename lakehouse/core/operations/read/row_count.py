"""Count the rows of a planned read, from the footers of base files where these decide.

Engines count the rows of a dataset by reading its first column, which is the commit time. Rows of a file that were
written by one commit have one commit time, which the statistics of the footer contain.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.state.file_slices import FileSlices

_READERS = 8
#: The number of slices whose footers are read before the first row is returned.
_FOOTERS = 32
_BATCH_ROWS = 131_072
_COMMIT_TIME = META_COLUMNS[0]


def with_least_columns(scan: Scan) -> Scan:
    """Return a scan whose only column is the commit time, which can be read from statistics."""
    return replace(scan, plan=replace(scan.plan, schema=pa.schema([scan.table_schema.field(_COMMIT_TIME)])))


def count_rows(scan: Scan) -> int:
    """Return the number of rows of a scan.

    Without a condition, the footer of the base file has the number of rows of a slice without log files. The columns
    of the scan are read from all other slices, so scan one column only.
    """
    slices = scan.plan.slices
    if scan.plan.residual is not None:
        return _rows(scan)
    is_counted = slices.log_counts == 0
    counted: int = sum(footer.num_rows for footer in _footers(scan, slices.filter(is_counted)))
    return counted + _rows(_of_slices(scan, slices.filter(~is_counted)))


def commit_time_batches(scan: Scan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan without a condition whose only column is the commit time.

    A file whose statistics contain only one commit time is not read.
    """
    assert scan.schema.names == [_COMMIT_TIME] and scan.plan.residual is None
    slices = scan.plan.slices
    for first in range(0, len(slices), _FOOTERS):
        some = slices[first : first + _FOOTERS]
        without_logs = iter(_footers(scan, some.filter(some.log_counts == 0)))
        constants = [_constant(next(without_logs)) if count == 0 else None for count in some.log_counts.tolist()]
        for constant, group in groupby(range(len(some)), key=constants.__getitem__):
            numbers = list(group)
            if constant is None:
                yield from _of_slices(scan, some[numbers[0] : numbers[-1] + 1]).batches()
                continue
            for _ in numbers:
                yield from _repeated(scan.schema, *constant)


def _rows(scan: Scan) -> int:
    return sum(batch.num_rows for batch in scan.batches())


def _of_slices(scan: Scan, slices: FileSlices) -> Scan:
    return replace(scan, plan=replace(scan.plan, slices=slices))


def _footers(scan: Scan, slices: FileSlices) -> list[pq.FileMetaData]:
    """Return the footers of the base files of slices."""

    def footer_of(path: str) -> pq.FileMetaData:
        reader = BaseFileReader(scan.storage, path)
        try:
            return reader.statistics
        finally:
            reader.close()

    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(footer_of, [base.path for base in slices.bases()]))


def _constant(footer: pq.FileMetaData) -> tuple[str, int] | None:
    """Return the commit time of all rows of a file and their number; None if the statistics contain several."""
    names = footer.schema.names
    if _COMMIT_TIME not in names:
        return None
    column, times = names.index(_COMMIT_TIME), set()
    for number in range(footer.num_row_groups):
        statistics = footer.row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
            return None
        times |= {statistics.min, statistics.max}
    return (times.pop(), footer.num_rows) if len(times) == 1 else None


def _repeated(schema: pa.Schema, value: str, rows: int) -> Iterator[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(value, schema.field(0).type), min(rows, _BATCH_ROWS))], schema=schema
    )
    for start in range(0, rows, _BATCH_ROWS):
        yield batch.slice(0, min(_BATCH_ROWS, rows - start))
