"""Create and drop indexes of the metadata table (MDT-6, MDT-7).

create   the definition of a secondary index, or of an index on an expression; the service `index` builds it
drop     first the properties, then the files, plans that build the index, and the definition
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.files.keys.secondary_keys import text_refusal
from lakehouse.core.format.timeline.indexing import decode_index_plan
from lakehouse.core.metadata.definitions import read_definitions, write_definitions
from lakehouse.core.metadata.partitions.expression_index import type_refusal
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.partitions.registry import partition_named, partition_refusal
from lakehouse.core.metadata.place import DEFINITIONS_KEY, DEFINITIONS_PATH, listed_partitions
from lakehouse.core.metadata.write.drop import drop_partitions
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.indexing import FILES, ListedPartitions
from lakehouse.core.rows.index_functions import (
    EXPRESSION,
    FORMAT,
    IndexFunction,
    functions_of_hudi,
    index_function,
)
from lakehouse.core.state.table_config import TableConfig, require_writable
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import UnsupportedError, UserError, nearest
from lakehouse.model.display import Readable, Shown
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.indexing import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    IDENTITY,
    SECONDARY_INDEX,
    DeclaredIndex,
)
from lakehouse.model.instant import Action, State
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedIndexes(Readable):
    """The partitions of the metadata table that were dropped, and the pending plans that built them."""

    partitions: tuple[str, ...]
    plans: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        return Shown(f"dropped indexes: {', '.join(self.partitions)}", {"plans": self.plans})


def create_index(table: LoadedTable, policies: Policies, index: DeclaredIndex) -> Definition:
    """Store the definition of an index, which the next run of the service builds; return the definition.

    Raises UserError if the column does not exist, the function is unknown, or another index has this name.
    """
    require_writable(table.config, table.env.storage.root)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.refresh()
        root, storage = now.env.storage.root, now.env.storage
        made, stored = definition_of(now, index), read_definitions(storage)
        existing = stored.get(index.partition)
        if existing is not None and existing != made:
            raise UserError(
                f"{root}: the index {index.name} exists with another definition; drop it first with `lakehouse index "
                "drop`, or choose another name",
                index=index.name,
            )
        require_supported(now, index.partition, made)
        if existing is None:
            lock.check()
            write_definitions(storage, {**stored, index.partition: made}, now.config.layout)
            update_properties(now.env, {DEFINITIONS_KEY: DEFINITIONS_PATH})
    kind = stored_index_type(now.config.raw)
    if index.kind == SECONDARY_INDEX and now.config.path_keys.partition_fields:
        logger.warning(
            "%s: reads use the index %s only if a record key is in one partition, and hoodie.index.type=%s does not "
            "ensure this; a table with a global index, such as GLOBAL_SIMPLE, ensures it",
            root,
            index.name,
            kind.name or "(not stored)",
        )
    return made


def drop_index(table: LoadedTable, policies: Policies, name: str) -> DroppedIndexes:
    """Drop an index by its name or by its partition of the metadata table, even while it is being built.

    Raises UserError if the table has no such index, or if it is `files`, which all indexes need.
    """
    require_writable(table.config, table.env.storage.root)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.refresh()
        listed, stored = listed_in(now), read_definitions(now.env.storage)
        partition = _partition_of(now, name, {*listed.usable, *listed.building, *stored})
        lock.check()
        gone = {partition, *drop_partitions(now.metadata, [partition])}
        plans = _drop_plans(now, gone, lock)
        remaining = {name: definition for name, definition in stored.items() if name not in gone}
        if remaining != stored:
            lock.check()
            write_definitions(now.env.storage, remaining, now.config.layout)
    logger.info("%s: dropped the indexes %s", table.env.storage.root, ", ".join(sorted(gone)))
    return DroppedIndexes(partitions=tuple(sorted(gone)), plans=plans)


def listed_in(table: LoadedTable) -> ListedPartitions:
    """Return the index partitions in the loaded properties."""
    usable, building = listed_partitions(table.config.raw)
    return ListedPartitions(usable=usable, building=building)


def definition_of(table: LoadedTable, index: DeclaredIndex) -> Definition:
    """Return the definition of a declared index; raise UserError for an unknown column, function or type."""
    is_secondary, version = index.kind == SECONDARY_INDEX, table.config.layout.index_version
    function = index_function(index.function, {} if is_secondary else index.options)
    if not is_secondary:
        _require_maintainable(table, index, function)
    schema = table_schema(table)
    if schema is not None:
        if index.column not in schema.names:
            raise UserError(
                f"{table.env.storage.root}: index {index.name}: column {index.column!r} is not in the table."
                f"{nearest(index.column, schema.names)}",
                column=index.column,
            )
        kind = schema.field(index.column).type
        why = text_refusal(kind) if is_secondary else _expression_refusal(index, function, kind, version)
        if why is not None:
            raise UserError(f"{table.env.storage.root}: index {index.name}: {why}", column=index.column)
    return Definition(
        index_type=index.kind,
        function=IDENTITY if is_secondary else index.function,
        source_fields=(index.column,),
        options={} if is_secondary else {EXPRESSION: index.function, **index.options},
        version=version,
    )


def _expression_refusal(index: DeclaredIndex, function: IndexFunction, kind: pa.DataType, version: str) -> str | None:
    """Return why an expression index on a column of this type must not be created, or None if it may."""
    is_of_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if version == "V1" and is_of_time and index.kind == COLUMN_STATS and function.name != IDENTITY:
        return (
            "queries of Apache Hudi 1.2 fail on an index on a function of times in a table of version 8; upgrade the "
            "table, or use bloom_filters"
        )
    return type_refusal(function, index.kind, kind, version)


def _require_maintainable(table: LoadedTable, index: DeclaredIndex, function: IndexFunction) -> None:
    """Raise UserError for an expression index with which Apache Hudi could no longer write to the table."""
    why = ""
    if not function.is_known_to_hudi:
        why = f"Apache Hudi has no function {function.name!r} for indexes; it has {', '.join(functions_of_hudi())}"
    elif function.name == "date_format" and FORMAT not in function.options:
        why = "date_format needs a format, such as date_format(at, yyyy-MM-dd)"
    elif index.kind == BLOOM_FILTERS and table.config.is_merge_on_read:
        why = "Apache Hudi 1.2 cannot write log files of a table with bloom filters of an expression; use column_stats"
    if why:
        raise UserError(f"{table.env.storage.root}: index {index.name}: {why}", index=index.name)


def require_supported(table: LoadedTable, name: str, definition: Definition | None) -> None:
    """Raise UnsupportedError if this package cannot build and maintain an index partition."""
    why = refusal(table.config, name, definition)
    if why is not None:
        raise UnsupportedError(f"{table.env.storage.root}: the index {name} cannot be built: {why}", index=name)


def refusal(config: TableConfig, name: str, definition: Definition | None) -> str | None:
    """Return why this package cannot build an index partition, or None if it can.

    Column statistics have no definition before they are built.
    """
    if partition_named(name) is None:
        return "there is no such index"
    return None if definition is None and name == COLUMN_STATS else partition_refusal(name, config, definition)


def _partition_of(table: LoadedTable, name: str, partitions: Collection[str]) -> str:
    """Return the partition of an index that exists; raise UserError otherwise."""
    root = table.env.storage.root
    prefixes = ("", PartitionKind.SECONDARY_INDEX, PartitionKind.EXPRESSION_INDEX)
    matches = [prefix + name for prefix in prefixes if prefix + name in partitions]
    if not matches:
        names = ", ".join(sorted(partitions)) or "none"
        raise UserError(f"{root}: there is no index {name!r}.{nearest(name, partitions)} Indexes: {names}", index=name)
    if len(matches) > 1:
        raise UserError(f"{root}: {name!r} may be {' or '.join(matches)}; name the partition", index=name)
    if matches[0] == FILES:
        raise UserError(
            f"{root}: the partition files lists the files of the table, and all indexes need it; drop the whole "
            "metadata table with the option hoodie.metadata.enable=false of Apache Hudi",
            index=name,
        )
    return matches[0]


def _drop_plans(table: LoadedTable, gone: Iterable[str], lock: TableLock) -> tuple[str, ...]:
    """Delete the pending plans that build one of the partitions, and drop the other partitions of these plans."""
    plans = []
    for pending in table.timeline.where(action=Action.INDEXING, pending=True):
        data = table.store.read(pending, State.REQUESTED)
        names = decode_index_plan(data).names if data else ()
        if not set(names).isdisjoint(gone):
            lock.check()
            drop_partitions(table.metadata, [name for name in names if name in listed_in(table.refresh()).building])
            table.store.remove_pending(pending)
            plans.append(pending.requested)
    return tuple(plans)
