"""Compare the metadata table with the files of the table; nothing is written (MDT-7).

    files           the listing of storage
    statistics      footers, and rows of log files; bounds may be wider than the values, never narrower
    record index    the keys of all rows, and their file groups
    bloom filters   the filters in footers
    other indexes   the values of all rows; a secondary index may have surplus entries

Partitions are rebuilt and compared part by part with the records that readers of the metadata table get. Expected
records are partitioned into local temporary files, so that memory is bounded. A part is:

    record index, secondary indexes     the keys in one file group of the index
    bloom filters                       the filters in one file group of the index
    column_stats, partition_stats       the files of one task, then the columns whose keys begin with one character
    indexes on expressions              the files of the table; they have one column
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.keys.changed_keys import (
    ChangedKeysContext,
    ChangedKeysFile,
    Sharding,
    by_number,
    changed_keys_of,
    find_changed_keys,
    write_divided,
)
from lakehouse.core.files.keys.secondary_keys import CHANGED, IndexedColumn, IndexedGroup, find_changed_values
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.metadata.groups import data_partitions_of_groups
from lakehouse.core.format.metadata.keys import bloom_keys, column_stats_keys, hash64
from lakehouse.core.format.metadata.records import STATS
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.metadata.key_changes import stored_groups
from lakehouse.core.metadata.partitions.bloom_filters import BloomFiltersPartition
from lakehouse.core.metadata.partitions.expression_index import function_of
from lakehouse.core.metadata.partitions.expression_statistics import evaluated_in_utc
from lakehouse.core.metadata.partitions.file_statistics import META, indexed_types, lacks_columns
from lakehouse.core.metadata.partitions.protocol import ENTRIES, Definition, TableFiles
from lakehouse.core.metadata.partitions.registry import partition_named
from lakehouse.core.metadata.read.known_definitions import known_definitions
from lakehouse.core.metadata.read.table import MetadataTable, open_for_reading
from lakehouse.core.metadata.read.unusable import Unusable
from lakehouse.core.metadata.record_kinds import record_kind
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.planning.indexing import FILES, PARTITION_STATS, RECORD_INDEX, in_build_order
from lakehouse.core.storage.local import LocalStorage
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.indexing import BLOOM_FILTERS, COLUMN_STATS
from lakehouse.model.metadata_report import MetadataCheck, MetadataReport
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

#: Maximum number of comparisons if other writers change the table during the validation.
_TRIES = 3
_EXAMPLES = 5
_READERS = 8
_BOUNDS = ("min", "max")
_PLACES = pa.schema([("key", pa.string()), ("partition", pa.string()), ("file_id", pa.string())])
#: Columns that are compared in addition to the key. Statistics have more columns, which depend on the writer.
_STATISTICS = ("value_count", "null_count")
#: Maximum number of files whose statistics are in memory as objects.
_FILES_AT_ONCE = 1_000
_NO_DEFINITION = (
    "it has no index definition, so no reader uses it and no write maintains it; drop it with `lakehouse index drop`"
)
#: The characters with which hashed keys begin.
_KEY_CHARACTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def validate_metadata(table: LoadedTable, policies: Policies, engine: Engine | None = None) -> MetadataReport:
    """Return the differences between the metadata table and the files of the table.

    Raises RetryableError if differences remain while writers continuously change the table, because a write between two
    reads looks like a difference.
    """
    for number in range(_TRIES):
        now = table.refresh()
        report = _compared(now, policies, engine)
        if report.ok or now.refresh().timeline == now.timeline:
            return report
        if number == _TRIES - 1:
            break
    raise RetryableError(
        f"{table.env.storage.root}: writers changed the table during each of {_TRIES} comparisons; run the validation "
        "again when fewer writers are active"
    )


def _compared(table: LoadedTable, policies: Policies, engine: Engine | None) -> MetadataReport:
    opened = open_for_reading(table.metadata, table.timeline)
    if isinstance(opened, Unusable):
        return MetadataReport(usable=False, reason=opened.reason, is_fault=opened.is_fault, is_absent=opened.is_absent)
    # Rows of older files are not compared: metadata tables that were built by earlier releases have none.
    files = replace(table_files(table, policies, engine), described=None)
    names = in_build_order(opened.usable)
    sizes = [pc.sum(files.newest.column("size_bytes")).as_py() or 0] * len(names)
    checks = []
    with observed_stage(stage_of(table, "comparison of the metadata table", "index", sizes)) as running:
        for name, size in zip(names, sizes, strict=True):
            with running.tasks([size]):
                checks.append(_checked(opened, files, name))
    return MetadataReport(usable=True, checks=tuple(checks))


def _checked(metadata: MetadataTable, files: TableFiles, name: str) -> MetadataCheck:
    try:
        return _check_files(metadata, files) if name == FILES else _check_index(metadata, files, name)
    except CorruptTableError as error:
        return MetadataCheck(partition=name, error=error.message)
    except pa.ArrowInvalid as error:
        return MetadataCheck(partition=name, error=f"a data file cannot be read: {error}")


def _check_files(metadata: MetadataTable, files: TableFiles) -> MetadataCheck:
    stored, expected = (_with_paths(listing) for listing in (metadata.listing(), files.files))
    return _check(FILES, stored, expected, ("size_bytes",))


def _with_paths(listing: pa.Table) -> pa.Table:
    path = pc.binary_join_element_wise(listing.column("partition"), listing.column("name"), "/")
    return listing.append_column("key", path)


def _check_index(metadata: MetadataTable, files: TableFiles, name: str) -> MetadataCheck:
    kind = partition_named(name)
    if kind is None:
        return MetadataCheck(partition=name, error="this package does not know this index, so it was not compared")
    files = replace(files, definitions=_compared_definitions(metadata))
    if name == RECORD_INDEX:
        # A comparison with a build is not possible, because a build writes task files, but a validation writes nothing.
        return _check_locations(metadata, files)
    if kind.kind is PartitionKind.SECONDARY_INDEX:
        return _check_secondary(metadata, files, name)
    if name == BLOOM_FILTERS:
        return _check_filters(metadata, files)
    if name in (COLUMN_STATS, PARTITION_STATS):
        return _check_columns(metadata, files, name)
    definition = files.definitions.get(name)
    if definition is None:
        return MetadataCheck(partition=name, error=_NO_DEFINITION)
    stored = metadata.records(name)
    expected = record_kind(name, definition).decode(kind.build(name, files).sort_by("key"), SCHEMA)
    stored = stored.filter(_wanted(stored, expected, _older_keys(files, definition.source_fields)))
    if "null_count" in expected.column_names:
        return _check_expression(name, stored, expected, files)
    return _check(name, stored, expected, ())


def _compared_definitions(metadata: MetadataTable) -> Mapping[str, Definition]:
    """Return the index definitions without columns that some writers leave out.

    In version 6, Hudi 0.15 writes statistics of all meta columns, and Hudi 1.2 those of three.
    """
    definitions = known_definitions(metadata)
    if COLUMN_STATS not in definitions or metadata.layout.stores_definitions:
        return definitions
    own = definitions[COLUMN_STATS]
    names = tuple(name for name in own.source_fields if name in META or name not in META_COLUMNS)
    return {**definitions, COLUMN_STATS: replace(own, source_fields=names)}


def _check_columns(metadata: MetadataTable, files: TableFiles, name: str) -> MetadataCheck:
    """Compare column statistics. Expected rows are partitioned by the first character of their keys.

    A key begins with the hash of its column, so the rows of a column are compared together.
    """
    kind, definition = partition_named(name), files.definitions[COLUMN_STATS]
    assert kind is not None, "statistics are a known partition"
    if lacks_columns(metadata.layout, definition, files.schema):
        # This package writes no rows. Files of other writers, or with an older schema, may have some.
        return MetadataCheck(partition=name)
    records, kinds = record_kind(name, definition), indexed_types(files.schema)
    checks = [MetadataCheck(partition=name)]
    listed, indexed = files.files.column("name").combine_chunks(), pa.array(definition.source_fields, pa.string())
    with TemporaryDirectory(prefix="lakehouse-statistics-") as folder:
        storage = LocalStorage(folder)
        written: list[ChangedKeysFile] = []
        for number, some in enumerate(_pieces(files.newest, whole_partitions=name == PARTITION_STATS)):
            entries = kind.build(name, replace(files, newest=some)).cast(ENTRIES).combine_chunks()
            if entries.num_rows:
                places = write_divided(storage, f"{number}.arrow", by_number(entries, _first_characters(entries)))
                written += [] if places is None else [places]
        for number, character in enumerate(_KEY_CHARACTERS):
            stored = metadata.records(name, pa.array([character.encode()]))
            entries = changed_keys_of(storage, written, number, ENTRIES).sort_by("key")
            if not (entries.num_rows or stored.num_rows):
                continue
            expected = records.decode(entries, SCHEMA)
            columns = [] if name == PARTITION_STATS else _beginning_with(character, definition.source_fields)
            stored = stored.filter(_wanted(stored, expected, _older_keys(files, columns)))
            # Readers ignore columns outside of the index definition. Hudi 0.x wrote rows for all columns, and an
            # upgrade keeps them.
            stored = stored.filter(pc.is_in(stored.column("column"), value_set=indexed))
            if name == COLUMN_STATS:
                # No reader uses the rows of deleted files. Hudi 0.x keeps them when it cleans a partition.
                stored = stored.filter(pc.is_in(stored.column("name"), value_set=listed))
            if metadata.layout.names_logs_by_slice:
                # A log file that was rolled back stays without rows. Rows of log files are not read.
                stored, expected = _without_logs(stored), _without_logs(expected)
            checks.append(_check_statistics(name, stored, expected, kinds))
    return _united(checks)


def _without_logs(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.starts_with(rows.column("name"), ".")))


def _pieces(files: pa.Table, *, whole_partitions: bool) -> Iterator[pa.Table]:
    """Yield the files in pieces; with `whole_partitions` a piece has all files of its partitions."""
    files = files.sort_by([("partition", "ascending"), ("name", "ascending")])
    starts = np.arange(0, files.num_rows, _FILES_AT_ONCE)
    if whole_partitions and files.num_rows:
        codes = np.asarray(files.column("partition").combine_chunks().dictionary_encode().indices)
        firsts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
        starts = np.unique(firsts[np.searchsorted(firsts, starts, side="right") - 1])
    for start, end in pairwise([*starts.tolist(), files.num_rows]):
        yield files.slice(start, end - start)


def _first_characters(entries: pa.Table) -> np.ndarray[Any, Any]:
    """Return for each key the position of its first character in `_KEY_CHARACTERS`."""
    first = pc.binary_slice(entries.column("key"), 0, 1).cast(pa.string())
    return np.asarray(pc.index_in(first, value_set=pa.array(list(_KEY_CHARACTERS))).combine_chunks()).astype(np.int64)


def _beginning_with(character: str, columns: Sequence[str]) -> list[str]:
    hashes = hash64(pa.array(columns, pa.string())).to_pylist()
    return [name for name, text in zip(columns, hashes, strict=True) if text.startswith(character)]


def _check_filters(metadata: MetadataTable, files: TableFiles) -> MetadataCheck:
    """Compare the bloom filters of files, one file group of the index after the other."""
    kind, records = BloomFiltersPartition(), record_kind(BLOOM_FILTERS, None)
    ids = [slice_.file_id for slice_ in metadata.slices(BLOOM_FILTERS)]
    built = kind.build_groups(BLOOM_FILTERS, files, ids)
    following = next(built, None)
    checks, older = [MetadataCheck(partition=BLOOM_FILTERS)], _older_keys(files, ())
    listed = bloom_keys(files.files.column("partition"), files.files.column("name"))
    for file_id, stored in metadata.records_of_groups(BLOOM_FILTERS):
        entries = ENTRIES.empty_table()
        if following is not None and following[0] == file_id:
            # Groups without filters are skipped.
            entries, following = following[1].sort_by("key"), next(built, None)
        expected = records.decode(entries, SCHEMA)
        # No reader uses the filters of deleted files.
        stored = stored.filter(pc.is_in(stored.column("key").cast(pa.string()), value_set=listed))
        stored = stored.filter(_wanted(stored, expected, older))
        checks.append(_check(BLOOM_FILTERS, stored, expected, ("filter",)))
    return _united(checks)


def _check_secondary(metadata: MetadataTable, files: TableFiles, name: str) -> MetadataCheck:
    """Compare a secondary index one file group after the other, as `_check_locations`."""
    definition, count = files.definitions.get(name), len(metadata.slices(name))
    if definition is None:
        return MetadataCheck(partition=name, error=_NO_DEFINITION)
    checks = [MetadataCheck(partition=name)]
    with TemporaryDirectory(prefix="lakehouse-values-") as folder:
        storage = LocalStorage(folder)
        changes: list[ChangedKeysFile | None] = []
        if files.read is not None:
            column = IndexedColumn(
                read=files.read,
                column=definition.source_fields[0],
                directory="values",
                groups=count,
                version=definition.version,
                output=storage,
            )
            tasks = [(IndexedGroup(after=piece),) for piece in files.slices]
            changes = LocalEngine(_READERS).run(partial(find_changed_values, column), tasks)
        written = [file for file in changes if file is not None]
        for number, (_, stored) in enumerate(metadata.records_of_groups(name)):
            keys = pc.unique(changed_keys_of(storage, written, number, CHANGED).column("key"))
            checks.append(_check(name, stored, pa.table({"key": keys}), ()))
    # Readers check the value of each row, so a surplus entry hides nothing.
    return replace(_united(checks), allows_surplus=True)


def _check_locations(metadata: MetadataTable, files: TableFiles) -> MetadataCheck:
    """Compare the record index one file group after the other.

    The keys of all rows are partitioned by file group in local temporary files, so that memory is bounded by one file
    group. Nothing is written to the table.
    """
    by_partition = metadata.is_partitioned_record_index
    ids = [slice_.file_id for slice_ in metadata.slices(RECORD_INDEX)]
    groups = data_partitions_of_groups(RECORD_INDEX, ids) if by_partition else {"": ids}
    sharding = Sharding(is_partitioned=by_partition, groups={name: tuple(of) for name, of in groups.items()})
    numbers = {file_id: number for number, file_id in enumerate(sharding.file_ids)}
    checks = [MetadataCheck(partition=RECORD_INDEX)]
    with TemporaryDirectory(prefix="lakehouse-keys-") as folder:
        changes: list[ChangedKeysFile | None] = []
        context = None
        if files.read is not None:
            context = ChangedKeysContext(
                read=files.read, sharding=sharding, directory="keys", output=LocalStorage(folder)
            )
            tasks = [(group,) for group in stored_groups(files.slices, files.config.timezone)]
            changes = LocalEngine(_READERS).run(partial(find_changed_keys, context), tasks)
        written = [file for file in changes if file is not None]
        for file_id, rows in metadata.records_of_groups(RECORD_INDEX):
            stored = rows.select(_PLACES.names).cast(_PLACES)
            expected = _PLACES.empty_table()
            if context is not None:
                expected = changed_keys_of(context.storage, written, numbers[file_id]).select(_PLACES.names)
            if by_partition:
                # A record key may be in several partitions.
                stored, expected = (_with_partition(places) for places in (stored, expected))
            expected = _indexed_places(expected, stored)
            checks.append(_check(RECORD_INDEX, stored, expected, ("partition", "file_id")))
    return _united(checks)


def _indexed_places(rows: pa.Table, stored: pa.Table) -> pa.Table:
    """Return one location per key: the stored location if it contains a row with the key.

    An insert may add rows with a key that exists. Hudi keeps the place of one such row.
    """
    place, held = (_places(table) for table in (rows, stored))
    is_stored = pc.is_in(place, value_set=held)
    keys = rows.column("key").combine_chunks()
    other = rows.filter(pc.invert(pc.is_in(keys, value_set=keys.filter(is_stored))))
    rows = pa.concat_tables([rows.filter(is_stored), other])
    first = rows.append_column("row", pa.array(np.arange(rows.num_rows))).group_by("key").aggregate([("row", "min")])
    return rows.take(first.column("row_min"))


def _places(rows: pa.Table) -> pa.Array:
    columns = [pc.fill_null(rows.column(name), "") for name in _PLACES.names]
    return pc.binary_join_element_wise(*columns, "\0").combine_chunks()


def _united(checks: Sequence[MetadataCheck]) -> MetadataCheck:
    """Combine the checks of the parts of an index partition."""
    return replace(
        checks[0],
        records=sum(check.records for check in checks),
        missing=sum(check.missing for check in checks),
        surplus=sum(check.surplus for check in checks),
        different=sum(check.different for check in checks),
        examples=tuple(text for check in checks for text in check.examples)[:_EXAMPLES],
    )


def _with_partition(rows: pa.Table) -> pa.Table:
    key = pc.binary_join_element_wise(rows.column("partition"), rows.column("key"), "/")
    return rows.set_column(0, "key", key)


def _older_keys(files: TableFiles, columns: Sequence[str]) -> pa.Array:
    """Return the record keys of files outside of the newest slices: keys of bloom filters, and of columns.

    They may have records, and they have none if the index was built by an earlier release.
    """
    names = files.files.column("name")
    is_newest = pc.is_in(names, value_set=files.newest.column("name").combine_chunks())
    older = files.files.filter(pc.invert(pc.or_(is_newest, pc.ends_with(names, ".cdc"))))
    places = (older.column("partition"), older.column("name"))
    of_columns = [column_stats_keys(pa.repeat(pa.scalar(name), older.num_rows), *places) for name in columns]
    return pa.concat_arrays([bloom_keys(*places), *of_columns])


def _wanted(stored: pa.Table, expected: pa.Table, older: pa.Array) -> pa.Array:
    """Return the mask of stored records to compare: all except records of older files."""
    keys = stored.column("key").cast(pa.string())
    needed = expected.column("key").combine_chunks().cast(pa.string())
    return pc.or_(pc.is_in(keys, value_set=needed), pc.invert(pc.is_in(keys, value_set=older)))


# parameters: the records, the types of columns, and which bounds are compared
def _check_statistics(
    name: str,
    stored: pa.Table,
    expected: pa.Table,
    kinds: Mapping[str, pa.DataType],
    judged: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> MetadataCheck:
    """Compare rows and counts, and the bounds of the stored rows that `judged` selects."""
    stored, expected = _without_empty_files(stored, expected)
    check = _check(name, stored, expected, () if name == PARTITION_STATS else _STATISTICS)
    stored = judged(stored)
    narrow: list[str] = []
    for column in pc.unique(expected.column("column")).to_pylist():
        kind = kinds.get(column)
        if kind is None:
            continue
        pairs = [_of_column(rows, column, kind) for rows in (stored, expected)]
        narrow += _narrow(*pairs)
    if not narrow:
        return check
    examples = (*check.examples, *(f"bounds are too narrow: {key}" for key in narrow))[:_EXAMPLES]
    return replace(check, different=check.different + len(narrow), examples=examples)


def _without_empty_files(stored: pa.Table, expected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return statistics without the entries of files without rows, such as log files with deletes only.

    A stored entry of such a file stays if it counts values. Hudi writes none for an empty base file, and this package
    used to count deletes as nulls.
    """
    empty = expected.filter(pc.equal(expected.column("value_count"), 0)).column("key").combine_chunks()
    if not len(empty):
        return stored, expected
    says_nothing = pc.equal(stored.column("value_count"), stored.column("null_count")).fill_null(False)
    is_right = pc.and_(pc.is_in(stored.column("key"), value_set=empty), says_nothing)
    wrong = stored.filter(pc.invert(is_right))
    counted = pc.or_(
        pc.invert(pc.is_in(expected.column("key"), value_set=empty)),
        pc.is_in(expected.column("key"), value_set=wrong.column("key").combine_chunks()),
    )
    return wrong, expected.filter(counted)


def _check_expression(name: str, stored: pa.Table, expected: pa.Table, files: TableFiles) -> MetadataCheck:
    """Compare the rows of files exactly. Rows of partitions may have wider bounds, and surplus rows may be stored."""
    definition = files.definitions[name]
    kinds: dict[str, pa.DataType] = {}
    depends_on_zone = False
    if files.schema is not None:
        field, function = files.schema.field(definition.source_fields[0]), function_of(definition)
        kinds = {field.name: function.result_type(field.type)}
        depends_on_zone = function.depends_on_zone(field.type)

    def judged(rows: pa.Table) -> pa.Table:
        # No reader uses bounds that another engine computed in an unknown time zone.
        return rows.filter(evaluated_in_utc(rows)) if depends_on_zone else rows

    is_file = pc.equal(expected.column("type"), STATS)
    check = _check_statistics(
        name, stored.filter(pc.equal(stored.column("type"), STATS)), expected.filter(is_file), kinds, judged
    )
    partitions = expected.filter(pc.invert(is_file))
    held = stored.filter(pc.is_in(stored.column("key"), value_set=partitions.column("key").combine_chunks()))
    wide = _check_statistics(PARTITION_STATS, held, partitions, kinds, judged)
    return replace(
        check,
        records=check.records + wide.records,
        missing=check.missing + wide.missing,
        different=check.different + wide.different,
        examples=(*check.examples, *wide.examples)[:_EXAMPLES],
    )


def _of_column(rows: pa.Table, column: str, kind: pa.DataType) -> pa.Table:
    rows = rows.filter(pc.equal(rows.column("column"), column))
    keys = rows.column("key").combine_chunks()
    return typed_statistics(rows, kind).append_column("key", keys)


def _narrow(stored: pa.Table, expected: pa.Table) -> list[str]:
    """Return file or partition and keys of rows whose stored bounds exclude an actual value."""
    place = pc.index_in(expected.column("key"), value_set=stored.column("key").combine_chunks())
    both = expected.filter(place.is_valid())
    theirs = stored.take(place.drop_null())
    judged = pc.and_(both.column("known"), theirs.column("known"))
    low, high = (
        compare(theirs.column(bound), both.column(bound))
        for bound, compare in zip(_BOUNDS, (pc.greater, pc.less), strict=True)
    )
    # A null bound in an existing row means that all values are null.
    nothing = pc.and_(theirs.column("min").is_null(), both.column("min").is_valid())
    wrong = pc.and_(judged, pc.or_(pc.or_(low.fill_null(False), high.fill_null(False)), nothing))
    names: list[str] = both.filter(wrong).column("name").to_pylist()
    return names


def _check(name: str, stored: pa.Table, expected: pa.Table, columns: tuple[str, ...]) -> MetadataCheck:
    """Compare records by key, and the given columns of records that both have."""
    ours, theirs = (rows.column("key").combine_chunks().cast(pa.string()) for rows in (stored, expected))
    place = pc.index_in(theirs, value_set=ours)
    missing = theirs.filter(place.is_null())
    surplus = ours.filter(pc.invert(pc.is_in(ours, value_set=theirs)))
    both, held = expected.filter(place.is_valid()), stored.take(place.drop_null())
    different = theirs.filter(place.is_valid()).filter(_unequal(both, held, columns))
    examples = [
        *(f"missing: {_shown(expected, theirs, key)}" for key in missing[:_EXAMPLES].to_pylist()),
        *(f"surplus: {_shown(stored, ours, key)}" for key in surplus[:_EXAMPLES].to_pylist()),
        *(f"different: {_shown(expected, theirs, key)}" for key in different[:_EXAMPLES].to_pylist()),
    ]
    return MetadataCheck(
        partition=name,
        records=stored.num_rows,
        missing=len(missing),
        surplus=len(surplus),
        different=len(different),
        examples=tuple(examples[:_EXAMPLES]),
    )


def _unequal(expected: pa.Table, stored: pa.Table, columns: tuple[str, ...]) -> pa.Array:
    flags = pa.repeat(pa.scalar(False), expected.num_rows)
    for column in columns:
        first, second = (rows.column(column).combine_chunks() for rows in (expected, stored))
        nulls = pc.not_equal(first.is_null(), second.is_null())
        flags = pc.or_(flags, pc.or_(nulls, pc.not_equal(first, second).fill_null(False)))
    return flags


def _shown(rows: pa.Table, keys: pa.Array, key: str) -> str:
    """Describe a record: the file and column for a hashed key, otherwise the key."""
    if "column" not in rows.column_names:
        return key
    number = pc.index(keys, key).as_py()
    return f"{rows.column('column')[number].as_py()} of {rows.column('name')[number].as_py() or '(root)'}"
