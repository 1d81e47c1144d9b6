"""Choose the base files of a planned read that another Parquet reader may read in place of Arrow.

DuckDB and Polars decode Parquet files of this machine faster than a stream of Arrow reaches them. Their own reader
returns the same rows for a file if all of this holds:

- no log changes its rows, and no condition of the scan has to be applied to them
- its columns have the types of the table and none is missing, as its footer shows
- its columns have their present names, if the table has column ids
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.rows.stored_names import evolved_columns, is_renamed_in, path_instant
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.system.threads import parallel_map

#: Maximum number of files whose footers are read. With more files, pruning by the conditions of a query saves more.
MOST_FILES = 256
#: Characters of patterns in paths.
_PATTERN = frozenset("*?[]{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedScan:
    """A planned read in two parts.

    Attributes:
        paths: The paths on this machine of the files that another Parquet reader reads, in the order of the plan.
        ids: The partitions and file ids of their slices.
        rest: The read of all other slices; None if there are none.
    """

    paths: tuple[str, ...]
    ids: frozenset[Group]
    rest: Scan | None


def divided(scan: Scan, *, is_filtered_later: bool = False) -> DividedScan:
    """Divide a planned read into the files that another Parquet reader may read, and the other slices.

    `is_filtered_later` is whether the caller applies the condition of the plan to the rows.
    """
    slices = scan.plan.slices
    nothing = DividedScan(paths=(), ids=frozenset(), rest=scan)
    is_local = scan.storage.root.startswith("/")
    has_condition = scan.context.commit_times is not None or not (scan.plan.residual is None or is_filtered_later)
    if not is_local or has_condition or scan.context.skips_damage or len(slices) > MOST_FILES:
        return nothing
    # The schema of the result lacks the names that columns have in files.
    named = pa.schema([scan.table_schema.field(name) for name in scan.schema.names])
    is_evolved = bool(evolved_columns(named))
    candidates: list[tuple[int, str, int]] = []
    paths, ids = [], set()
    is_plain = np.zeros(len(slices), bool)
    for number, file_slice in enumerate(slices):
        base = file_slice.base
        if base is None or file_slice.logs or not base.path.endswith(".parquet"):
            continue
        if is_evolved and is_renamed_in(named, path_instant(base.path)):
            continue
        path = scan.storage.native(base.path)
        if _PATTERN.isdisjoint(path):
            candidates.append((number, path, base.size_bytes))
    # A footer contains a bloom filter, so reading it takes some milliseconds.
    whole = parallel_map(pa.cpu_count(), lambda one: _has_columns(one[1], one[2], scan.schema), candidates)
    for (number, path, _), has_columns in zip(candidates, whole, strict=True):
        if has_columns:
            paths.append(path)
            ids.add((slices[number].partition, slices[number].file_id))
            is_plain[number] = True
    if not paths:
        return nothing
    rest = None if is_plain.all() else without(scan, frozenset(ids))
    return DividedScan(paths=tuple(paths), ids=frozenset(ids), rest=rest)


def without(scan: Scan, ids: frozenset[Group]) -> Scan:
    """Return a planned read without the slices of some file groups, by partition and file id."""
    slices = scan.plan.slices
    others = np.array([(one.partition, one.file_id) not in ids for one in slices], dtype=bool)
    return replace(scan, plan=replace(scan.plan, slices=slices.filter(others)))


def _has_columns(path: str, size_bytes: int, schema: pa.Schema) -> bool:
    """Return whether a file has all columns, in the types of the table."""
    try:
        stored = _stored_types(path, size_bytes)
    except (OSError, pa.ArrowException):
        # The read itself reports a missing or damaged file.
        return False
    return all(stored.get(field.name) == field.type for field in schema)


@lru_cache(maxsize=4 * MOST_FILES)
def _stored_types(path: str, size_bytes: int) -> dict[str, pa.DataType]:
    """Return the column types of a base file, which never changes; names that occur twice are left out."""
    del size_bytes
    # Not the schema that Arrow stores in addition: other readers ignore it.
    schema = pq.read_metadata(path).schema.to_arrow_schema()
    return {field.name: field.type for field in schema if schema.names.count(field.name) == 1}
