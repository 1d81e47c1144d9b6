"""Compare the bounds in the metadata table with the rows of the newest files: a bound must not exclude a value.

    files        the rows of a file, in the column types of the table
    partitions   the rows of all files in a partition's newest slices

Statistics that exclude nothing are valid. Readers ignore partition bounds of floats and strings, because Hudi computes
them without the files that have no bounds (MDT-14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.base_reader import open_columns
from lakehouse.core.files.base.column_bounds import bounds_array, measured_bounds, merged_bounds, stored_bounds
from lakehouse.core.files.log.log_bounds import log_bounds
from lakehouse.core.format.metadata.keys import column_stats_keys, partition_stats_keys
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.metadata.partitions.file_statistics import indexed_types
from lakehouse.core.metadata.read.known_definitions import known_definitions
from lakehouse.core.metadata.read.table import COLUMN_STATS, PARTITION_STATS, MetadataTable, open_for_reading
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.data_files import one_array
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import ColumnBounds
from lakehouse.model.display import count_text
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.validation import Finding

#: Maximum number of files whose bounds are in memory at the same time.
_FILES_AT_ONCE = 1_000
_EXAMPLES = 3

Kinds = Mapping[str, pa.DataType]
#: Bounds by dotted path of the column; None if the file cannot be read.
Measured = Mapping[str, ColumnBounds] | None


def check_bounds(
    table: LoadedTable, engine: Engine, slices: Sequence[FileSlice], schema: pa.Schema
) -> Iterator[Finding]:
    """Yield a finding for each column whose bounds exclude a value; `schema` are the data columns of the table."""
    metadata = open_for_reading(table.metadata, table.timeline)
    if isinstance(metadata, Unusable) or COLUMN_STATS not in metadata.usable:
        return
    try:
        yield from _compared(table, engine, metadata, slices, schema)
    except MetadataUnusableError as error:
        yield Finding(invariant="unchecked", problem=f"bounds were not compared: {error.message}")


def _compared(
    table: LoadedTable, engine: Engine, metadata: MetadataTable, slices: Sequence[FileSlice], schema: pa.Schema
) -> Iterator[Finding]:
    types = indexed_types(schema)
    kinds = {name: types[name] for name in known_definitions(metadata)[COLUMN_STATS].source_fields if name in types}
    measure = partial(_measured, table.env.storage, kinds)
    narrow: dict[str, list[str]] = {}
    whole: dict[str, Measured] = {}
    # A later commit may have appended to a log file of layout 1.
    files = [
        file
        for piece in slices
        for file in _files(piece)
        if not (table.config.layout.appends_to_logs and _is_log(file))
    ]
    for start in range(0, len(files), _FILES_AT_ONCE):
        some = files[start : start + _FILES_AT_ONCE]
        measured = engine.run(measure, some)
        for file, bounds in zip(some, measured, strict=True):
            whole[file.partition] = _united(whole[file.partition], bounds) if file.partition in whole else bounds
        with_bounds = [(file, bounds) for file, bounds in zip(some, measured, strict=True) if bounds is not None]
        for column, place in _narrow_files(metadata, kinds, with_bounds):
            narrow.setdefault(column, []).append(place)
    for column, places in narrow.items():
        yield _finding(column, places, "file")
    if PARTITION_STATS in metadata.usable and table.config.layout.has_completion_times:
        for column, kind in kinds.items():
            if not _is_combinable(kind):
                continue
            places = _narrow_partitions(metadata, column, kind, whole)
            if places:
                yield _finding(column, places, "partition")


def _files(piece: FileSlice) -> list[BaseFile | LogFile]:
    return [*([] if piece.base is None else [piece.base]), *piece.logs]


def _is_log(file: BaseFile | LogFile) -> bool:
    return isinstance(file, LogFile)


def _is_combinable(kind: pa.DataType) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))


def _measured(storage: Storage, kinds: Kinds, _attempt: Attempt, file: BaseFile | LogFile) -> Measured:
    """Task: return the bounds of a file's rows. A different check reports files that cannot be read."""
    try:
        if isinstance(file, LogFile):
            return log_bounds(storage, file.path, kinds)[0]
        with open_columns(storage, file.path) as reader:
            sizes = stored_bounds(reader, [*kinds])
            return measured_bounds(reader, {name: kinds[name] for name in sizes}, sizes)
    except (CorruptTableError, UnsupportedError, NotFoundError, pa.ArrowException, OSError):
        return None


def _united(first: Measured, second: Measured) -> Measured:
    """Combine two bounds; None if one is unknown. A column that is missing in a file is null there."""
    if first is None or second is None:
        return None
    return merged_bounds((first, second))


def _narrow_files(
    metadata: MetadataTable, kinds: Kinds, files: Sequence[tuple[BaseFile | LogFile, Mapping[str, ColumnBounds]]]
) -> Iterator[tuple[str, str]]:
    """Yield column and path of each file whose stored bounds exclude a value."""
    names = pa.table(
        {
            "partition": pa.array([file.partition for file, _ in files], pa.string()),
            "name": pa.array([file.name for file, _ in files], pa.string()),
        }
    )
    stored = metadata.ranges([*kinds], names) if files and kinds else None
    for column, kind in kinds.items() if stored is not None else ():
        held = [(file, bounds[column]) for file, bounds in files if column in bounds and bounds[column].known]
        keys = column_stats_keys(
            pa.repeat(pa.scalar(column), len(held)),
            pa.array([file.partition for file, _ in held], pa.string()),
            pa.array([file.name for file, _ in held], pa.string()),
        )
        for number in _excluding(stored, kind, keys, [bounds for _, bounds in held]):
            yield column, held[number][0].path


def _narrow_partitions(
    metadata: MetadataTable, column: str, kind: pa.DataType, whole: Mapping[str, Measured]
) -> list[str]:
    """Return the partitions whose stored bounds of a column exclude a value."""
    held = [
        (partition, bounds[column])
        for partition, bounds in sorted(whole.items())
        if bounds is not None and column in bounds and bounds[column].known
    ]
    if not held:
        return []
    paths = [partition for partition, _ in held]
    stored = metadata.partition_ranges([column], paths)
    keys = partition_stats_keys(pa.repeat(pa.scalar(column), len(held)), pa.array(paths, pa.string()))
    return [paths[number] or "(root)" for number in _excluding(stored, kind, keys, [bounds for _, bounds in held])]


def _excluding(stored: pa.Table, kind: pa.DataType, keys: pa.Array, actual: Sequence[ColumnBounds]) -> list[int]:
    """Return the positions of the actual bounds that the stored rows with these keys exclude."""
    place = pc.index_in(keys, value_set=one_array(stored.column("key")))
    live = pc.and_(place.is_valid(), pc.invert(one_array(stored.column("deleted")).take(place)).fill_null(False))
    typed = typed_statistics(stored.take(place.filter(live)), kind)
    low, high = (
        bounds_array([getattr(bounds, name) for bounds in actual], kind).filter(live) for name in ("low", "high")
    )
    minima, maxima = one_array(typed.column("min")), one_array(typed.column("max"))
    below, above = pc.greater(minima, low).fill_null(False), pc.less(maxima, high).fill_null(False)
    # Known null bounds mean that all values are null. NaN is greater than all numbers.
    nothing = pc.and_(minima.is_null(), low.is_valid())
    excludes = pc.or_(pc.or_(below, above), nothing)
    if pa.types.is_floating(kind):
        excludes = pc.or_(excludes, pc.is_nan(high).fill_null(False))
    wrong = pc.and_(one_array(typed.column("known")), excludes)
    positions: list[int] = pc.indices_nonzero(live).filter(wrong).to_pylist()
    return positions


def _finding(column: str, places: Sequence[str], what: str) -> Finding:
    shown = ", ".join(places[:_EXAMPLES])
    problem = f"the bounds of {column!r} exclude values of {count_text(len(places), what)}: {shown}"
    return Finding(invariant="metadata.bounds", problem=problem, path=places[0])
