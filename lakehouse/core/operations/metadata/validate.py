"""Compare the metadata table with the files of the table; nothing is written (MDT-7).

    files           the listing of storage
    statistics      footers, and rows of log files; bounds may be wider than the values, never narrower
    record index    the keys of all rows, and their file groups
    bloom filters   the filters in footers
    other indexes   the values of all rows; a secondary index may have entries too many

Every partition is built again in memory and compared with what readers of the metadata table see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.changed_keys import (
    ChangedKeysContext,
    ChangedKeysFile,
    Sharding,
    changed_keys_of,
    find_changed_keys,
)
from lakehouse.core.format.metadata.groups import data_partitions_of_groups
from lakehouse.core.format.metadata.records import STATS
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.metadata.key_changes import stored_groups
from lakehouse.core.metadata.partitions.expression_index import function_of
from lakehouse.core.metadata.partitions.file_statistics import indexed_types
from lakehouse.core.metadata.partitions.protocol import TableFiles
from lakehouse.core.metadata.partitions.registry import partition_named
from lakehouse.core.metadata.read.open import open_for_reading
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.metadata.read.unusable import Unusable
from lakehouse.core.metadata.record_kinds import record_kind
from lakehouse.core.operations.load.stage import stage_of
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.planning.indexing import FILES, PARTITION_STATS, RECORD_INDEX, in_build_order
from lakehouse.core.storage.local import LocalStorage
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.indexing import BLOOM_FILTERS, COLUMN_STATS, EXPRESSION_PREFIX, SECONDARY_PREFIX
from lakehouse.model.metadata_report import MetadataCheck, MetadataReport
from lakehouse.spec.options.policies import Policies

#: Comparisons of a table that other writers change meanwhile.
_TRIES = 3
_EXAMPLES = 5
_READERS = 8
_BOUNDS = ("min", "max")
_PLACES = pa.schema([("key", pa.string()), ("partition", pa.string()), ("file_id", pa.string())])
#: What is compared beside the key. Statistics have more columns, which depend on the writer.
_STATISTICS = ("value_count", "null_count")
_OF_FILES = (COLUMN_STATS, BLOOM_FILTERS)
_COMPARED = {BLOOM_FILTERS: ("filter",)}


def validate_metadata(table: LoadedTable, policies: Policies, engine: Engine | None = None) -> MetadataReport:
    """Return the differences between the metadata table and the files of the table.

    Raises RetryableError if writers change the table all the time and differences are found: a write between two
    reads looks like one.
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
    found = open_for_reading(table.metadata, table.timeline)
    if isinstance(found, Unusable):
        return MetadataReport(usable=False, reason=found.reason, is_fault=found.is_fault)
    files = table_files(table, policies, engine)
    names = in_build_order(found.usable)
    sizes = [pc.sum(files.newest.column("size_bytes")).as_py() or 0] * len(names)
    checks = []
    with observed_stage(stage_of(table, "comparison of the metadata table", "index", sizes)) as running:
        for name, size in zip(names, sizes, strict=True):
            with running.tasks([size]):
                checks.append(_checked(found, files, name))
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
    kind, definitions = partition_named(name), metadata.definitions
    if kind is None:
        return MetadataCheck(partition=name, error="this package does not know this index, so it was not compared")
    files = replace(files, definitions=definitions)
    if name == RECORD_INDEX:
        # Its build writes files of its tasks, and a validation writes nothing.
        return _check_locations(metadata, files)
    stored, records = metadata.records(name), record_kind(name, definitions.get(name))
    expected = records.decode(kind.build(name, files).sort_by("key"), SCHEMA)
    allowed = expected
    if name in _OF_FILES or name.startswith(EXPRESSION_PREFIX):
        # A build covers the newest files. Files that a clean will remove may have records, too.
        allowed = records.decode(kind.build(name, replace(files, newest=_older(files))).sort_by("key"), SCHEMA)
    stored = stored.filter(_wanted(stored, expected, allowed))
    if name.startswith(EXPRESSION_PREFIX) and "null_count" in expected.column_names:
        return _check_expression(name, stored, expected, files)
    if "null_count" in expected.column_names:
        return _check_statistics(name, stored, expected, indexed_types(files.schema))
    check = _check(name, stored, expected, _COMPARED.get(name, ()))
    if not name.startswith(SECONDARY_PREFIX):
        return check
    # Readers check the value of each row, so an entry too many hides nothing.
    return replace(check, allows_surplus=True)


def _check_locations(metadata: MetadataTable, files: TableFiles) -> MetadataCheck:
    """Compare the record index one file group after the other.

    The keys of all rows are divided by file group in temporary files of this machine, so that memory is bounded by a
    file group. Nothing is written to the table.
    """
    by_partition = metadata.is_partitioned_record_index
    ids = [slice_.file_id for slice_ in metadata.slices(RECORD_INDEX)]
    groups = data_partitions_of_groups(RECORD_INDEX, ids) if by_partition else {"": ids}
    sharding = Sharding(is_partitioned=by_partition, groups={name: tuple(of) for name, of in groups.items()})
    numbers = {file_id: number for number, file_id in enumerate(sharding.file_ids)}
    checks = [MetadataCheck(partition=RECORD_INDEX)]
    with TemporaryDirectory(prefix="lakehouse-keys-") as folder:
        found: list[ChangedKeysFile | None] = []
        context = None
        if files.read is not None:
            context = ChangedKeysContext(
                read=files.read, sharding=sharding, directory="keys", output=LocalStorage(folder)
            )
            tasks = [(group,) for group in stored_groups(files.slices, files.config.timezone)]
            found = LocalEngine(_READERS).run(partial(find_changed_keys, context), tasks)
        written = [file for file in found if file is not None]
        for file_id, rows in metadata.records_of_groups(RECORD_INDEX):
            stored = rows.select(_PLACES.names).cast(_PLACES)
            expected = _PLACES.empty_table()
            if context is not None:
                expected = changed_keys_of(context.storage, written, numbers[file_id]).select(_PLACES.names)
            if by_partition:
                # A record key may be in several partitions.
                stored, expected = (_with_partition(places) for places in (stored, expected))
            checks.append(_check(RECORD_INDEX, stored, expected, ("partition", "file_id")))
    return _united(checks)


def _united(checks: Sequence[MetadataCheck]) -> MetadataCheck:
    """Return one check of the parts of an index partition."""
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


def _older(files: TableFiles) -> pa.Table:
    """Return the files that do not belong to the newest slices, without change logs."""
    names = files.files.column("name")
    is_newest = pc.is_in(names, value_set=files.newest.column("name").combine_chunks())
    return files.files.filter(pc.invert(pc.or_(is_newest, pc.ends_with(names, ".cdc"))))


def _wanted(stored: pa.Table, expected: pa.Table, allowed: pa.Table) -> pa.Array:
    """Return which stored records are compared: all but those of older files."""
    keys = stored.column("key").cast(pa.string())
    needed, older = (rows.column("key").combine_chunks().cast(pa.string()) for rows in (expected, allowed))
    return pc.or_(pc.is_in(keys, value_set=needed), pc.invert(pc.is_in(keys, value_set=older)))


def _check_statistics(
    name: str, stored: pa.Table, expected: pa.Table, kinds: Mapping[str, pa.DataType]
) -> MetadataCheck:
    check = _check(name, stored, expected, () if name == PARTITION_STATS else _STATISTICS)
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


def _check_expression(name: str, stored: pa.Table, expected: pa.Table, files: TableFiles) -> MetadataCheck:
    """Compare the rows of files exactly; rows of partitions may have wider bounds, and more of them may be stored."""
    definition = files.definitions[name]
    kinds = {}
    if files.schema is not None:
        field = files.schema.field(definition.source_fields[0])
        kinds = {field.name: function_of(definition).result_type(field.type)}
    is_file = pc.equal(expected.column("type"), STATS)
    check = _check_statistics(
        name, stored.filter(pc.equal(stored.column("type"), STATS)), expected.filter(is_file), kinds
    )
    partitions = expected.filter(pc.invert(is_file))
    held = stored.filter(pc.is_in(stored.column("key"), value_set=partitions.column("key").combine_chunks()))
    wide = _check_statistics(PARTITION_STATS, held, partitions, kinds)
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
    # A null bound of a known row says that all values are null.
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
    """Return the file and column of a record with a hashed key, else its key."""
    if "column" not in rows.column_names:
        return key
    number = pc.index(keys, key).as_py()
    return f"{rows.column('column')[number].as_py()} of {rows.column('name')[number].as_py() or '(root)'}"
