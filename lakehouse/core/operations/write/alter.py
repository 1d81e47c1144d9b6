"""Change the columns or the properties of a table: one commit of metadata, no data file is read or written (DATA-11).

under the lock    load the schema; apply the changes
                  create <t>.requested and <t>.inflight; the heartbeat starts before the instant
                  properties     history of schemas     record of the metadata table     <t>_<c>.<action>

A crash leaves a pending instant without files, which the next write rolls back. Its history file is not valid, because
its write is not completed. Other writers that began before the commit get a conflict, because their files have the
earlier columns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.format.internal_schema import InternalSchema, arrow_field, first_schema_with_ids
from lakehouse.core.metadata.change import change_of_commit
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.file_statistics import COLUMN_STATS
from lakehouse.core.operations.commit.completion import Completion, complete_action, withdraw_record
from lakehouse.core.operations.commit.precondition import Precondition, precondition_conflict
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.schema import declared_schema
from lakehouse.core.operations.load.schema_history import ids_extra, save_history
from lakehouse.core.operations.load.table import LoadedTable, stored_options
from lakehouse.core.operations.load.write_settings import require_writes
from lakehouse.core.operations.write.ended_writes import EndedWrites
from lakehouse.core.planning.schema_changes import ChangeRules, SchemaChange, apply_changes
from lakehouse.core.planning.schema_history import SchemaHistory
from lakehouse.core.rows.record_merge import ROW_MARKS
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.clustering import SORT_COLUMNS
from lakehouse.spec.options.event_time import EVENT_TIME_FIELD
from lakehouse.spec.options.metadata import STATISTICS_COLUMNS
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.spread import SPREAD_COLUMN
from lakehouse.spec.table.bucket_rules import HASH_FIELD

logger = logging.getLogger(__name__)

_PARTITION_STATS = "partition_stats"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRequest:
    """The changes of one call.

    Attributes:
        changes: Changes of columns, applied one after the other.
        properties: Properties to set; None removes a property.
        extra: The caller's extra metadata of the commit.
        precondition: The condition that must still hold at the commit.
    """

    changes: tuple[SchemaChange, ...] = ()
    properties: Mapping[str, str | None] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    precondition: Precondition | None = None


def alter(table: LoadedTable, policies: Policies, request: AlterRequest) -> Committed | NothingToDo | Conflict:
    """Change columns and properties.

    Raises:
        UserError: A change is not possible; the message names the column or the property, and the way out.
        RetryableError: Another writer is active where only one is allowed.
        CommitStateUnknownError: It is unknown whether the commit happened.
    """
    require_writes(table)
    policy = policies.transaction
    ended = EndedWrites(table, policy)
    table = ended.prepare(table)
    with table_lock(table.env, policy) as lock:
        now = table.refresh()
        now.store.refuse_during_restore(now.timeline)
        if request.precondition is not None:
            conflict = precondition_conflict(request.precondition, now, now.timeline)
            if conflict is not None:
                return conflict
        if request.changes and policy.eager:
            _refuse_writers(now)
        history = _history(now)
        rules = ChangeRules(uses=column_uses(now, request.properties), rounds=policies.schema.rounds)
        latest = apply_changes(history.latest, request.changes, rules, history.latest.version + 1)
        properties = _properties(now, request, latest, is_changed=latest is not history.latest)
        if latest is history.latest:
            return _set_properties(now, properties, lock)
        return _Alter(now, policies, request, lock).commit(history, latest, properties)


def _refuse_writers(table: LoadedTable) -> None:
    for instant in pending_writes(table):
        raise RetryableError(
            f"{table.env.storage.root}: the write {instant.requested} is active; change the columns when it is done",
            instant=instant.requested,
        )


def _history(table: LoadedTable) -> SchemaHistory:
    """Return the schema versions; the first change begins with the present schema as version 0."""
    declared = declared_schema(table)
    if declared is None:
        raise UserError(
            f"{table.env.storage.root} has no columns yet; create the table with a schema, or write rows first"
        )
    if declared.history is not None:
        return declared.history
    return SchemaHistory((first_schema_with_ids(declared.schema),)).typed(declared.schema)


def column_uses(table: LoadedTable, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the use of each column that cannot be renamed, dropped or retyped, with the way out, by dotted path.

    `changes` are properties that are set, or removed if None. Raises UserError if they leave options that do not fit.
    """
    config, rule = table.config, table.config.merge_rule
    uses = dict.fromkeys(ROW_MARKS, "a mark of deleted rows")
    new_table = "create a table with the columns you need, and copy the rows"
    uses |= dict.fromkeys(config.keys.record_key_fields, f"a record key column; {new_table}")
    uses |= dict.fromkeys(config.keys.partition_fields, f"a partition column; {new_table}")
    uses |= dict.fromkeys((*rule.ordering, *config.ordering_fields), f"an ordering column; {new_table}")
    for group in rule.groups:
        uses |= dict.fromkeys((group.ordering, *group.names), f"in a column group; {new_table}")
    if rule.delete_field:
        uses[rule.delete_field] = "the column that marks deletes"
    hashed = [name.strip() for name in config.raw.get(HASH_FIELD, "").split(",") if name.strip()]
    uses |= dict.fromkeys(hashed, f"hashed by the bucket index; {new_table}")
    raw = {key: value for key, value in {**config.raw, **changes}.items() if value is not None}
    stored = parse_options(stored_options(replace(config, raw=raw)))
    options = {
        EVENT_TIME_FIELD: (stored.event_time.column,),
        SPREAD_COLUMN: (stored.spread.column.strip(),),
        SORT_COLUMNS: stored.clustering.columns,
    }
    for option, columns in options.items():
        way_out = (
            f"named by the option {option} of this table; remove it first with alter().unset_properties({option!r})"
        )
        uses |= {column: way_out for column in columns if column and column not in uses}
    for name, definition in read_definitions(table.env.storage).items():
        if name not in (COLUMN_STATS, _PARTITION_STATS):
            drop = (
                f"indexed by {name}; drop the index first with `lakehouse index drop`, and create it again afterwards"
            )
            uses |= {column: drop for column in definition.source_fields if column not in uses}
    return uses


def _properties(
    table: LoadedTable, request: AlterRequest, latest: InternalSchema, *, is_changed: bool
) -> dict[str, str | None]:
    """Return the properties to write: those of the request, and the statistics columns that still exist."""
    properties = dict(request.properties)
    declared = table.config.raw.get(STATISTICS_COLUMNS, "")
    if is_changed and declared and STATISTICS_COLUMNS not in properties:
        names = {column.name for column in latest.columns}
        stays = [name.strip() for name in declared.split(",") if name.strip().partition(".")[0] in names]
        if ",".join(stays) != declared:
            properties[STATISTICS_COLUMNS] = ",".join(stays) or None
    raw = table.config.raw
    return {key: value for key, value in properties.items() if raw.get(key) != value}


def _set_properties(table: LoadedTable, properties: Mapping[str, str | None], lock: TableLock) -> NothingToDo:
    """Write the properties; without a change of columns there is no commit."""
    if not properties:
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES, reason="the table has these columns and properties already"
        )
    lock.check()
    update_properties(table.env, properties)
    names = ", ".join(sorted(properties))
    return NothingToDo(
        code=NothingToDoReason.NO_CHANGES, reason=f"the properties {names} are stored; no column changes"
    )


@dataclass(frozen=True, slots=True)
class _Alter:
    """The commit of one change, under the lock."""

    table: LoadedTable
    policies: Policies
    request: AlterRequest
    lock: TableLock

    def commit(self, history: SchemaHistory, latest: InternalSchema, properties: Mapping[str, str | None]) -> Committed:
        """Create the instant, and commit the schema at its time."""
        table, heartbeat = self.table, Heartbeat(self.table.env, self.policies.transaction)
        action = Action.DELTACOMMIT if table.config.is_merge_on_read else Action.COMMIT
        instant: Instant | None = None
        try:
            instant = table.store.request(table.timeline, action, b"", announce=heartbeat.start)
            history = history.with_version(replace(latest, version=int(instant.requested)))
            metadata = self._metadata(history)
            inflight = CommitMetadata(operation=Operation.ALTER_SCHEMA.value)
            started = table.store.start(instant, table.config.layout.encode_inflight(inflight))
            if properties:
                self.lock.check()
                update_properties(table.env, properties)
            completed = self._complete(started, metadata, history)
        except CommitStateUnknownError:
            heartbeat.stop()
            raise
        except BaseException:
            self._abandon(instant)
            heartbeat.discard()
            raise
        heartbeat.discard()
        logger.info("%s: changed the columns with %s", table.env.storage.root, completed.requested)
        return Committed(instant=completed, metadata=metadata)

    def _metadata(self, history: SchemaHistory) -> CommitMetadata:
        columns = pa.schema([arrow_field(column) for column in history.latest.data])
        extra = {**self.request.extra, "schema": arrow_to_avro(columns, table=self.table.config.name)}
        return CommitMetadata(operation=Operation.ALTER_SCHEMA.value, extra=extra | ids_extra(history))

    def _complete(self, started: Instant, metadata: CommitMetadata, history: SchemaHistory) -> Instant:
        table = self.table
        timeline = table.store.load()
        self.lock.check()
        save_history(table, started, timeline, history)
        data = table.config.layout.encode_commit(metadata, replace=False)
        change = replace(change_of_commit(metadata), evolved=history.evolved)
        completion = Completion(instant=started, timeline=timeline, data=data, change=change, is_last=True)
        completed = complete_action(table, completion, self.lock)
        table.store.remember(completed, data)
        return completed

    def _abandon(self, instant: Instant | None) -> None:
        """Remove the pending instant, which has no files; if that fails, the next write rolls it back."""
        if instant is None:
            return
        try:
            self.lock.check()
            current = self.table.store.load().current(instant)
            if current is not None and not current.is_completed:
                withdraw_record(self.table, instant.requested, self.lock)
                self.table.store.remove_pending(instant)
        except LakehouseError as error:
            logger.warning("%s: %s was not removed yet: %s", self.table.env.storage.root, instant.requested, error)
