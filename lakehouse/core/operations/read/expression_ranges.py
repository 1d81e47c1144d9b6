"""Select partitions and file slices that may match conditions on functions, by the indexes on expressions.

An index is used for a call with the same function, arguments and column. The records of files never change, so they are
valid for every version of the table; the ranges of partitions describe the newest version. These exclude nothing:

    a file or partition without a record
    a record in the time zone of another session, if the function depends on the zone (see `evaluated_in_utc`)
    bounds of floats in a partition: engines combine NaN bounds in different ways
    a literal whose upper or lower case differs between engines
    a bloom filter, for a string with other characters than ASCII: Hudi encodes it with the charset of its process
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import root_of, type_of
from lakehouse.core.expressions.literals import typed_list
from lakehouse.core.format.metadata.keys import bloom_keys, column_stats_keys, partition_stats_keys
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.metadata.partitions.expression_index import function_of, has_text, says_utc
from lakehouse.core.metadata.partitions.expression_statistics import evaluated_in_utc
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.read.layers import sorted_keys
from lakehouse.core.metadata.read.table import COLUMN_STATS, MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata, metadata_of
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.predicate import function_of as called_function
from lakehouse.core.planning.predicate import result_field
from lakehouse.core.planning.ranges import ColumnRanges, Flags, matches_of_leaves, may_match
from lakehouse.core.rows.stored_names import is_evolved
from lakehouse.core.state.data_files import one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.indexing import BLOOM_FILTERS
from lakehouse.model.partition_kind import PartitionKind, index_name, partition_kind
from lakehouse.model.predicate import Applied, Call, Comparison, In, Not, Predicate, calls_of

logger = logging.getLogger(__name__)

#: Maximum number of files whose statistics are looked up by key; for more files all statistics of the table are read.
_MOST_KEYS = 2_000
#: Maximum number of bloom filters that are read for one condition.
_MOST_FILTERS = 10_000

#: Returns for each item, a file or a partition, whether it may have rows that meet a leaf of the condition.
OfItems = Callable[[Predicate], Flags]
#: The same for a schema of the table.
OfSchema = Callable[[pa.Schema, Predicate], Flags]


class _Read(Protocol):
    """Reads the index records of a function call for some items; returns None if they cannot be used."""

    def __call__(
        self, metadata: MetadataTable, *, name: str, call: Call, schema: pa.Schema, items: Any
    ) -> OfSchema | None: ...


def slices_by_expression(
    table: LoadedTable, slices: FileSlices, where: Predicate, schema: pa.Schema
) -> tuple[Flags, tuple[str, ...]] | None:
    """Return which slices may have matching rows, and the names of the used indexes, or None if there is no index."""
    used = _used(table, where, schema, {COLUMN_STATS: _statistics, BLOOM_FILTERS: _filters}, slices.files)
    if not used:
        return None

    def of_leaf(leaf: Predicate) -> Flags:
        index = _index_of_leaf(used, leaf)
        return np.ones(len(slices), bool) if index is None else slices.any_file(index(leaf))

    keep = matches_of_leaves(where, len(slices), of_leaf)
    if table.config.merge_rule.merger is not None:
        # A merger may return values that no file contains.
        keep = keep | (slices.log_counts > 0)
    return keep, tuple(name for name, _ in used.values())


def partitions_by_expression(
    table: LoadedTable, paths: pa.Array, where: Predicate, schema: pa.Schema
) -> tuple[Flags, tuple[str, ...]] | None:
    """Return which partitions may have matching rows in the newest version, and the names of the indexes.

    None means that no index has statistics of partitions for the condition.
    """
    if table.config.is_merge_on_read and table.config.merge_rule.merger is not None:
        return None
    used = _used(table, where, schema, {COLUMN_STATS: _partition_statistics}, paths)
    if not used:
        return None

    def of_leaf(leaf: Predicate) -> Flags:
        index = _index_of_leaf(used, leaf)
        return np.ones(len(paths), bool) if index is None else index(leaf)

    return matches_of_leaves(where, len(paths), of_leaf), tuple(name for name, _ in used.values())


# parameters: the table, the condition, the readers of each index kind, and the items
def _used(
    table: LoadedTable, where: Predicate, schema: pa.Schema, readers: Mapping[str, _Read], items: Any
) -> dict[str, tuple[str, OfItems]]:
    """Return, by the string of each function call, the name of an index on the call and the ranges in this index."""
    if not table.config.layout.has_completion_times:
        return {}
    used: dict[str, tuple[str, OfItems]] = {}
    for text, call in {call.text: call for call in calls_of(where)}.items():
        index = _index_of(table, call, schema, readers, items)
        if index is not None:
            used[text] = index
    return used


def _index_of_leaf(used: Mapping[str, tuple[str, OfItems]], leaf: Predicate) -> OfItems | None:
    applied = leaf.part if isinstance(leaf, Not) else leaf
    index = used.get(applied.call.text) if isinstance(applied, Applied) else None
    return None if index is None else index[1]


# parameters: the table, the call, the readers of each index kind, and the items
def _index_of(
    table: LoadedTable, call: Call, schema: pa.Schema, readers: Mapping[str, _Read], items: Any
) -> tuple[str, OfItems] | None:
    """Return the name of an index on a call, and the ranges of items in it; None if no index can be used."""
    metadata = metadata_of(table)
    if is_evolved(schema.field(root_of(call.column, schema))):
        # The records of older files are about a column that had this name.
        return None
    for name in () if metadata is None else metadata.usable:
        definition = None
        if partition_kind(name) is PartitionKind.EXPRESSION_INDEX:
            definition = from_metadata(table, name, partial(_definition, name))
        if definition is None or not _is_on(definition, call):
            continue
        read = readers.get(definition.index_type)
        if read is None:
            continue
        ranges = from_metadata(table, name, partial(read, name=name, call=call, schema=schema, items=items))
        if ranges is not None:
            return index_name(name), partial(ranges, schema)
    return None


def _definition(name: str, metadata: MetadataTable) -> Definition | None:
    return metadata.definitions.get(name)


def _is_on(definition: Definition, call: Call) -> bool:
    if definition.source_fields != (call.column,):
        return False
    try:
        function = function_of(definition)
    except UserError:
        return False
    return (function.name, function.arguments) == (call.function, call.options)


def _statistics(metadata: MetadataTable, *, name: str, call: Call, schema: pa.Schema, items: pa.Table) -> OfSchema:
    """Return the ranges in the statistics of files; `items` are the files."""
    columns = pa.repeat(pa.scalar(call.column), items.num_rows)
    keys = column_stats_keys(columns, items.column("partition"), items.column("name"))
    if items.num_rows <= _MOST_KEYS:
        rows = metadata.found(name, sorted_keys(keys))
    else:
        rows = metadata.expression_ranges(name, call.column)
    place = pc.index_in(keys, value_set=one_array(rows.column("key")))
    ranges = _ranges(rows, call, schema).take(place)
    if place.null_count and COLUMN_STATS in metadata.usable:
        without = _null_counts(metadata, keys, place, type_of(call.column, schema))
        ranges = replace(ranges, nulls=pc.coalesce(ranges.nulls, without), values=pc.coalesce(ranges.values, without))
    return partial(_by_ranges, {call.text: ranges}, items.num_rows)


def _partition_statistics(
    metadata: MetadataTable, *, name: str, call: Call, schema: pa.Schema, items: pa.Array
) -> OfSchema | None:
    """Return the ranges in the statistics of partitions; `items` are their paths."""
    if pa.types.is_floating(result_field(call, schema).type):
        return None
    keys = partition_stats_keys(pa.repeat(pa.scalar(call.column), len(items)), items, expression=True)
    if len(items) <= _MOST_KEYS:
        rows = metadata.found(name, sorted_keys(keys))
    else:
        rows = metadata.expression_ranges(name, call.column, partitions=True)
    place = pc.index_in(keys, value_set=one_array(rows.column("key")))
    return partial(_by_ranges, {call.text: _ranges(rows, call, schema).take(place)}, len(items))


def _ranges(rows: pa.Table, call: Call, schema: pa.Schema) -> ColumnRanges:
    """Return statistics of results as ranges; rows that cannot exclude anything have null bounds and counts."""
    kind = result_field(call, schema).type
    typed = typed_statistics(rows, kind)
    is_valid = pc.invert(one_array(rows.column("deleted")))
    if called_function(call).depends_on_zone(type_of(call.column, schema)):
        is_valid = pc.and_(is_valid, evaluated_in_utc(rows))
    low, high = (one_array(typed.column(bound)) for bound in ("min", "max"))
    is_bounded = pc.and_(pc.and_(low.is_valid(), high.is_valid()), one_array(typed.column("known")))
    low, high = (pc.if_else(pc.and_(is_bounded, is_valid), bound, pa.scalar(None, kind)) for bound in (low, high))
    nulls, values = (
        pc.if_else(is_valid, one_array(typed.column(count)).cast(pa.int64()), pa.scalar(None, pa.int64()))
        for count in ("null_count", "value_count")
    )
    return ColumnRanges(low=low, high=high, nulls=nulls, values=pc.add(nulls, values), java_order=True)


def _null_counts(metadata: MetadataTable, keys: pa.Array, place: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the null counts of files without index records that contain only nulls, such as delete-only logs."""
    missing = keys.filter(place.is_null())
    rows = metadata.found(COLUMN_STATS, sorted_keys(missing.slice(0, _MOST_KEYS)))
    typed = typed_statistics(rows, kind)
    all_null = pc.and_(typed.column("known"), pc.and_(typed.column("min").is_null(), typed.column("max").is_null()))
    held = pc.index_in(keys, value_set=one_array(rows.column("key").filter(all_null)))
    counts = one_array(typed.column("null_count").filter(all_null)).cast(pa.int64())
    return counts.take(held)


def _by_ranges(ranges: Mapping[str, ColumnRanges], count: int, schema: pa.Schema, leaf: Predicate) -> Flags:
    applied = leaf.part if isinstance(leaf, Not) else leaf
    assert isinstance(applied, Applied), "only conditions on functions are judged by their index"
    if any(called_function(applied.call).is_doubtful(value) for value in _literals(applied)):
        return np.ones(count, bool)
    return may_match(leaf, ranges, schema, count)


def _literals(applied: Applied) -> Sequence[Any]:
    part = applied.part
    if isinstance(part, In):
        return part.values
    return (part.value,) if isinstance(part, Comparison) else (getattr(part, "prefix", ""),)


def _filters(metadata: MetadataTable, *, name: str, call: Call, schema: pa.Schema, items: pa.Table) -> OfSchema | None:
    """Return a function that checks a condition with the bloom filters of files; `items` are the files."""
    kind = result_field(call, schema).type
    if items.num_rows > _MOST_FILTERS or not has_text(kind):
        return None
    needs_utc = called_function(call).depends_on_zone(type_of(call.column, schema))
    keys = bloom_keys(items.column("partition"), items.column("name"))
    rows = metadata.found(name, sorted_keys(keys))
    place = pc.index_in(keys, value_set=one_array(rows.column("key"))).to_numpy(zero_copy_only=False)
    filters: dict[int, BloomFilter] = {}
    for position in np.flatnonzero(~np.isnan(place)).tolist() if rows.num_rows else ():
        number = int(place[position])
        try:
            bloom = BloomFilter.from_text(
                rows.column("filter")[number].as_py().decode(), rows.column("type")[number].as_py()
            )
        except (CorruptTableError, UnicodeDecodeError) as error:
            logger.warning("A bloom filter of the index %s cannot be read, so its file is not skipped: %s", name, error)
            continue
        if bloom.hashes_murmur and (not needs_utc or says_utc(bloom)):
            filters[position] = bloom
    return partial(_by_filters, filters, kind, items.num_rows)


def _by_filters(
    filters: Mapping[int, BloomFilter], kind: pa.DataType, count: int, _schema: pa.Schema, leaf: Predicate
) -> Flags:
    keep = np.ones(count, bool)
    part = leaf.part if isinstance(leaf, Applied) else None
    is_equality = isinstance(part, In) or (isinstance(part, Comparison) and part.operator == "=")
    if not isinstance(leaf, Applied) or not is_equality:
        return keep
    values = _literals(leaf)
    texts = pa.array(typed_list(In(leaf.call.text, values), kind).values, kind).cast(pa.string())
    is_plain = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    if not is_plain or any(called_function(leaf.call).is_doubtful(value) for value in values):
        return keep
    for position, bloom in filters.items():
        keep[position] = bool(bloom.might_contain(pa.chunked_array([texts])).any())
    return keep
