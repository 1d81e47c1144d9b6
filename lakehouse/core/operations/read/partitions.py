"""Choose the partitions that a read lists, before any file is known (MDT-14).

    partitions        values in partition paths
    record_index      record keys that the condition names are in these file groups
    secondary_index   values that the condition names belong to record keys in these file groups
    partition_stats   column ranges of whole partitions
    expression_partitions  ranges of function results in whole partitions

The partitions come from the metadata table. Without one, the directories that can match are listed (`load.listing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import type_of
from lakehouse.core.files.keys.secondary_keys import searched_texts, text_refusal
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow, with_meta_fields
from lakehouse.core.metadata.read.table import RECORD_INDEX, MetadataTable
from lakehouse.core.operations.load.commits import KeyScope, key_scope, trusts_keys
from lakehouse.core.operations.load.metadata import from_metadata, known_partitions, metadata_of
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.expression_ranges import partitions_by_expression
from lakehouse.core.operations.read.file_metadata import decided_by_path
from lakehouse.core.operations.read.metadata_ranges import ranges_of_partitions
from lakehouse.core.planning.partitions import PartitionFilter, values_of
from lakehouse.core.planning.ranges import may_match
from lakehouse.core.planning.scan import PlanStep
from lakehouse.core.rows.keys import record_keys
from lakehouse.core.rows.stored_names import is_evolved
from lakehouse.errors import UserError
from lakehouse.model.display import count_text
from lakehouse.model.partition_kind import PartitionKind, index_name, partition_kind
from lakehouse.model.predicate import Predicate

_RECORD_KEY = META_COLUMNS[2]
#: Maximum number of record keys that are looked up for a condition.
_MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInput:
    """The input of the choice of partitions, before files are listed.

    Attributes:
        table: The loaded table.
        where: The condition on rows.
        schema: The data columns of the table.
        keep: The filter by partition values; None keeps all.
        is_newest: Whether the read returns the newest version; indexes and partition statistics describe no other.
        merges_logs: Whether the rows of log files are read, too.
        trusts_keys: Whether keys are taken for unique without a proof.
    """

    table: LoadedTable
    where: Predicate
    schema: pa.Schema
    keep: PartitionFilter | None
    is_newest: bool
    merges_logs: bool = True
    trusts_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """The partitions to list.

    Attributes:
        partitions: Partition paths; None means all, or those that `keep` keeps.
        keep: The filter of directories, if the partitions were not chosen.
        groups: The only file groups (partition, file id) with matching rows; None if unknown.
        steps: The number of partitions that each step left.
    """

    partitions: tuple[str, ...] | None = None
    keep: PartitionFilter | None = None
    groups: frozenset[tuple[str, str]] | None = None
    steps: tuple[PlanStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Located:
    """The only file groups (partition, file id) that can contain matching rows, and how they were found.

    `groups` is None if the index has no proof that it finds all rows.
    """

    groups: frozenset[tuple[str, str]] | None
    reason: str


_UNPROVEN = Located(
    None,
    "the index is not used: commits of other programs, or before its build, may have repeated a key; `lakehouse "
    "metadata rebuild` checks all keys",
)
#: Finds the file groups for a condition by an index; returns None if the index cannot be used.
Locator = Callable[[PartitionInput], Located | None]


def choose_partitions(given: PartitionInput) -> PartitionChoice:
    """Return the partitions that may have matching rows according to the metadata table."""
    paths = known_partitions(given.table)
    if paths is None:
        return PartitionChoice(keep=given.keep)
    count = len(paths)
    steps = [PlanStep(name="metadata", reason="the metadata table names the partitions", partitions=len(paths))]
    if given.keep is not None:
        paths = paths.filter(pa.array(given.keep.select(paths)))
        steps.append(PlanStep(name="partitions", reason="values in partition paths", partitions=len(paths)))
    groups: frozenset[tuple[str, str]] | None = None
    for name, locator in LOCATORS:
        located = locator(given) if len(paths) else None
        if located is None:
            continue
        if located.groups is None:
            steps.append(PlanStep(name=name, reason=located.reason, partitions=len(paths)))
            continue
        groups = located.groups if groups is None else groups & located.groups
        paths = paths.filter(pc.is_in(paths, value_set=pa.array(sorted({p for p, _ in groups}), pa.string())))
        steps.append(PlanStep(name=name, reason=located.reason, partitions=len(paths)))
    if groups is None and given.is_newest and len(paths) and not decided_by_path(given.table, given.where):
        for narrow in (_by_statistics, _by_expressions):
            paths, step = narrow(given, paths)
            steps += [step] if step is not None else []
    chosen = None if len(paths) == count else tuple(paths.to_pylist())
    return PartitionChoice(partitions=chosen, groups=groups, steps=tuple(steps))


def by_record_key(given: PartitionInput) -> Located | None:
    """Find the file groups for record keys in the condition, by the record index."""
    if not given.is_newest or not given.merges_logs:
        return None
    keys = keys_of(given.table, given.where, with_meta_fields(given.schema))
    if keys is None or len(keys) > _MOST_KEYS:
        return None
    metadata = metadata_of(given.table)
    if metadata is None or RECORD_INDEX not in metadata.usable:
        return None
    # The definition of the index is only read if keys are not unique in the table.
    is_unique = _has_unique_keys(given, KeyScope.TABLE)
    if not is_unique and not (_has_unique_keys(given, KeyScope.PARTITION) and _is_by_partition(given.table)):
        return _UNPROVEN
    rows = from_metadata(given.table, RECORD_INDEX, lambda metadata: metadata.locations(keys))
    if rows is None:
        return None
    groups = frozenset(zip(rows.column("partition").to_pylist(), rows.column("file_id").to_pylist(), strict=True))
    reason = f"{count_text(len(keys), 'record key')} in {count_text(len(groups), 'file group')}"
    return Located(groups, f"the record index has {reason}")


def by_secondary_index(given: PartitionInput) -> Located | None:
    """Find the file groups for values in the condition, by a secondary index and the record index.

    An index may contain surplus entries, so the condition is evaluated on the rows of the file groups, too.
    """
    if not given.is_newest or not given.merges_logs:
        return None
    metadata = metadata_of(given.table)
    names = () if metadata is None or RECORD_INDEX not in metadata.usable else metadata.usable
    for name in names:
        is_secondary = partition_kind(name) is PartitionKind.SECONDARY_INDEX
        wanted = _indexed_texts(given, name) if is_secondary else None
        if wanted is None:
            continue
        if not _has_unique_keys(given, KeyScope.TABLE):
            return _UNPROVEN
        column, texts = wanted
        matches = from_metadata(given.table, name, partial(_matches, name=name, texts=texts))
        if matches is None or matches.num_rows > _MOST_KEYS:
            continue
        keys = pc.unique(matches.column("record_key"))
        rows = from_metadata(given.table, RECORD_INDEX, partial(_locations, keys=keys))
        if rows is None:
            return None
        groups = frozenset(zip(rows.column("partition").to_pylist(), rows.column("file_id").to_pylist(), strict=True))
        reason = f"{count_text(len(keys), 'record key')} of {column} in {count_text(len(groups), 'file group')}"
        return Located(groups, f"the index {index_name(name)} has {reason}")
    return None


def _has_unique_keys(given: PartitionInput, scope: KeyScope) -> bool:
    """Return whether each record key is in one row of its scope, so that an index of keys has an entry for each row.

    Otherwise the record index has an entry for only one of the rows with a key, and a secondary index loses the entries
    of the other rows. Hudi does not check this, and its reads miss rows.
    """
    return given.trusts_keys or trusts_keys(given.table) or key_scope(given.table).covers(scope)


def _is_by_partition(table: LoadedTable) -> bool:
    """Return whether each partition has a record index of its own."""
    return bool(from_metadata(table, RECORD_INDEX, lambda metadata: metadata.is_partitioned_record_index))


def _matches(metadata: MetadataTable, *, name: str, texts: pa.Array) -> pa.Table:
    return metadata.secondary_matches(name, texts)


def _locations(metadata: MetadataTable, *, keys: pa.Array) -> pa.Table:
    return metadata.locations(keys)


def _indexed_texts(given: PartitionInput, name: str) -> tuple[str, pa.Array] | None:
    """Return the column of a secondary index, and the strings of the only values with which the condition can hold."""
    definition = from_metadata(given.table, name, lambda metadata: metadata.definitions.get(name))
    if definition is None or len(definition.source_fields) != 1:
        return None
    (column,) = definition.source_fields
    if column not in given.schema.names or is_evolved(given.schema.field(column)):
        return None
    kind = given.schema.field(column).type
    values = values_of(given.where, column, kind) if text_refusal(kind) is None else None
    if values is None or len(values) > _MOST_KEYS:
        return None
    return column, searched_texts(pa.array(values, kind))


#: Indexes that find file groups, in order.
LOCATORS: tuple[tuple[str, Locator], ...] = (
    ("record_index", by_record_key),
    ("secondary_index", by_secondary_index),
)


def keys_of(table: LoadedTable, where: Predicate, schema: pa.Schema) -> pa.Array | None:
    """Return the only record keys for which a condition can hold, or None if it does not determine all key columns."""
    stored = values_of(where, _RECORD_KEY, pa.string())
    if stored is not None:
        return pa.array(sorted({value.as_py() for value in stored}), pa.string())
    fields = table.config.keys.record_key_fields
    if not fields or not all(_has_stable_text(table, name, schema) for name in fields):
        return None
    allowed = {name: values_of(where, name, type_of(name, schema)) for name in fields}
    if any(values is None for values in allowed.values()):
        return None
    if math.prod(len(values or ()) for values in allowed.values()) > _MOST_KEYS:
        return None
    rows = [dict[str, object]()]
    for name, values in allowed.items():
        rows = [{**row, name: value.as_py()} for row in rows for value in values or ()]
    columns = pa.schema([(name, type_of(name, schema)) for name in fields])
    try:
        keys = record_keys(pa.Table.from_pylist(rows, schema=columns), table.config.keys)
    except UserError:
        # No row has an empty key. A search for the other keys is not worth the cost.
        return None
    return pc.unique(keys).cast(pa.string())


def _has_stable_text(table: LoadedTable, name: str, schema: pa.Schema) -> bool:
    """Return whether the strings of a key column stayed the same when its type changed."""
    if "." in name or name not in schema.names:
        return False
    kind = schema.field(name).type
    if pa.types.is_integer(kind):
        return True
    if not pa.types.is_string(kind) or not table.config.create_schema:
        return bool(pa.types.is_string(kind))
    created = avro_to_arrow(table.config.create_schema)
    return name not in created.names or pa.types.is_string(created.field(name).type)


def _by_statistics(given: PartitionInput, paths: pa.Array) -> tuple[pa.Array, PlanStep | None]:
    full = with_meta_fields(given.schema)
    ranges = ranges_of_partitions(given.table, paths, given.where, full)
    if ranges is None:
        return paths, None
    selected = paths.filter(pa.array(may_match(given.where, ranges, full, len(paths))))
    excluded = count_text(len(paths) - len(selected), "partition")
    reason = f"column ranges of partitions exclude {excluded}"
    return selected, PlanStep(name="partition_stats", reason=reason, partitions=len(selected))


def _by_expressions(given: PartitionInput, paths: pa.Array) -> tuple[pa.Array, PlanStep | None]:
    """Keep the partitions that indexes on expressions do not exclude."""
    matches = partitions_by_expression(given.table, paths, given.where, with_meta_fields(given.schema))
    if matches is None:
        return paths, None
    keep, names = matches
    selected = paths.filter(pa.array(keep))
    excluded = count_text(len(paths) - len(selected), "partition")
    reason = f"{', '.join(names)}: results of functions exclude {excluded}"
    return selected, PlanStep(name="expression_partitions", reason=reason, partitions=len(selected))
