"""The public face of a table: thin methods over operations.

Arrow input runs in this process; a Spark DataFrame runs on its Spark session. Both walk the same operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from lakehouse.core.engine.adapters import frame_engine, session_engine
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS, arrow_to_avro
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.create.create import create_table
from lakehouse.core.operations.create.declare import (
    TableDeclaration,
    declared_properties,
    require_merger,
    stored_options,
)
from lakehouse.core.operations.load.commits import archived_writes, latest_commit, latest_extra
from lakehouse.core.operations.load.savepoints import savepoints
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.operations.read.cdc import CDC, check_format
from lakehouse.core.operations.read.commit_range import commits_in_range
from lakehouse.core.operations.read.describe import describe
from lakehouse.core.operations.read.event_time import event_time_bound, version_at, watermark
from lakehouse.core.operations.read.health import TableHealth, table_health
from lakehouse.core.operations.read.queries import (
    SNAPSHOT,
    Changes,
    CompletedUpTo,
    Incremental,
    Query,
    ReadOptimized,
    ScanRequest,
    TimeTravel,
    Version,
)
from lakehouse.core.operations.undo.restore import Restored, restore
from lakehouse.core.operations.undo.rollback import FailedWrites, roll_back_dead_writes, rollback
from lakehouse.core.operations.undo.savepoint import create_savepoint, delete_savepoint
from lakehouse.core.operations.validate.validate import validate
from lakehouse.core.operations.write.request import WriteRequest
from lakehouse.core.operations.write.write import write
from lakehouse.core.planning.event_time import EventTimeVersion, Watermark
from lakehouse.core.planning.schema import normalise, plan_schema
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.services import TableServices
from lakehouse.errors import ConflictError, UserError, nearest
from lakehouse.model.commit import CommitMetadata, Operation, RollbackPlan
from lakehouse.model.drift import BatchColumns
from lakehouse.model.instant import Instant, Timeline
from lakehouse.model.restore import Savepoint
from lakehouse.model.texts import text_list
from lakehouse.model.validation import ValidationReport
from lakehouse.spec.options.parser import check_known, parse_options
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.schema import SchemaPolicy

Outcome = Committed | NothingToDo


class WriteCall(TypedDict, total=False):
    """What every writing verb takes beside its rows.

    `commit_metadata` goes into the commit's extra metadata. `options` are hoodie.* options of this call only.
    `allow_empty` makes a commit even if no row changes, to store its metadata. `precondition` must still hold at the
    commit; otherwise ConflictError is raised and nothing is committed. `columns` is what the source of the rows
    says of their columns, where rows differ in what they bring.
    """

    commit_metadata: Mapping[str, str]
    options: Mapping[str, str]
    allow_empty: bool
    precondition: Precondition | None
    columns: BatchColumns | None


class Table:
    """One table. Every call sees the table as it is at that moment; writes return when they are committed."""

    def __init__(self, env: Env, policies: Policies, loaded: LoadedTable) -> None:
        self._env, self._policies, self._loaded = env, policies, loaded

    @classmethod
    def open(
        cls,
        location: str,
        *,
        options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        allowed_functions: str | Sequence[str] = (),
        env: Env | None = None,
    ) -> Table:
        """Open the table at `location`; `options` override what the table stores.

        No code that the table names is loaded unless `allowed_functions` (names `package.module:function`, patterns
        `package.*`) or the environment variable LAKEHOUSE_ALLOWED_FUNCTIONS allows it: reads and writes that need a
        merger which is not allowed raise UnsupportedError, all else works.

        Raises UserError if there is no table, its merger cannot be loaded or an option is unknown, UnsupportedError for
        versions and features that cannot be honoured.
        """
        env = env or Env(storage=open_storage(location, storage_options or {}))
        loaded = load_table(env, allowed_functions=text_list(allowed_functions, "allowed_functions"))
        require_merger(loaded.config)
        policies = parse_options(stored_options(loaded.config))
        return cls(env, _overridden(policies, options or {}), loaded)

    @classmethod
    def create(
        cls,
        location: str,
        *,
        name: str,
        record_key: str | Sequence[str],
        partition_by: str | Sequence[str] = (),
        ordering: str | Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        env: Env | None = None,
        **declared: Any,
    ) -> Table:
        """Create a table and open it. Name, location and record key are all it needs.

        `record_key`, `partition_by` and `ordering` are a column or a list of columns. The record key is unique in each
        partition, as in Hudi, and not in the whole table: a row whose partition changed becomes a second row. It is
        unique in the table with a global index (`hoodie.index.type=GLOBAL_SIMPLE`) or without partitions;
        `validate(keys="global")` finds keys that are in several partitions.

        `declared` takes the other fields of TableDeclaration: table_type, cdc, key_generator, timestamp, and how
        versions of a record meet: merge_mode, merger, partial_update, unavailable_value, delete_field, delete_marker.
        Raises UserError if a table is there already (unless `exist_ok`) for options that do not fit together,
        and for a key, partition, ordering or delete column that `schema` lacks.
        """
        env = env or Env(storage=open_storage(location, storage_options or {}))
        declaration = TableDeclaration(
            name=name,
            record_key=text_list(record_key, "record_key", ordered=True),
            partition_by=text_list(partition_by, "partition_by", ordered=True),
            ordering=text_list(ordering, "ordering", ordered=True),
            schema=None if schema is None else arrow_to_avro(normalise(schema), table=name),
            options=dict(options or {}),
            **declared,
        )
        if schema is not None:
            plan_schema(None, schema, SchemaPolicy(), required=declaration.named_columns)
        create_table(env, declared_properties(declaration), exist_ok=exist_ok)
        allowed = (declaration.merger,) if declaration.merger else ()
        return cls.open(location, options=declaration.call_options(), allowed_functions=allowed, env=env)

    def with_options(self, options: Mapping[str, str]) -> Table:
        """Return the same table with `options` on top of those it was opened with."""
        return Table(self._env, _overridden(self._policies, options), self._loaded)

    @property
    def location(self) -> str:
        """Where the table is."""
        return self._env.storage.root

    @property
    def name(self) -> str:
        """The table's name."""
        return self._loaded.config.name

    @property
    def config(self) -> TableConfig:
        """The table as its properties declare it."""
        return self._loaded.config

    @property
    def timeline(self) -> Timeline:
        """The instants as they are now."""
        return self.refresh().timeline

    @property
    def schema(self) -> pa.Schema:
        """The data columns, without meta columns."""
        schema = table_schema(self.refresh())
        return pa.schema([]) if schema is None else schema

    def archived(self) -> Timeline:
        """The completed writes that were archived; they are not on the timeline."""
        return archived_writes(self.refresh())

    def refresh(self) -> LoadedTable:
        """Load the table anew, properties included; metadata of commits already read is kept."""
        self._loaded = self._loaded.refresh()
        return self._loaded

    @property
    def services(self) -> TableServices:
        """The table services of this table."""
        return TableServices(table=self.refresh(), policies=self._policies)

    @property
    def services_as_loaded(self) -> TableServices:
        """The table services as of the last load: for who asks several questions of one state; a run loads anew."""
        return TableServices(table=self._loaded, policies=self._policies)

    def upsert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Insert rows with new keys and update stored ones, by the table's merge mode."""
        return self._write(Operation.UPSERT, rows, call)

    def insert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Add rows without looking their keys up; small files are filled first."""
        return self._write(Operation.INSERT, rows, call)

    def bulk_insert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Add rows straight into new files, the fastest way to load much."""
        return self._write(Operation.BULK_INSERT, rows, call)

    def delete(self, keys: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Delete rows: a frame with the record key columns (and partition columns, else all partitions are searched).

        A record key as text, or a list of them, works too.
        """
        if isinstance(keys, str | bytes | Sequence):
            keys = pa.table({META_COLUMNS[2]: pa.array(text_list(keys, "keys"), pa.string())})
        return self._write(Operation.DELETE, keys, call)

    def delete_where(self, where: str, **call: Unpack[WriteCall]) -> Outcome:
        """Delete the rows that meet a condition; their keys stream from the files into the write."""
        fields = (*self.config.keys.record_key_fields, *self.config.keys.partition_fields)
        if _overridden(self._policies, call.get("options") or {}).deletes.retention_ms:
            # What is remembered is the delete of the versions that were found.
            fields = (*fields, *self.config.merge_rule.compared)
        columns = list(dict.fromkeys(name.partition(".")[0] for name in fields))
        scan = self.scan(columns, where).plan()
        return self._write(Operation.DELETE, pa.RecordBatchReader.from_batches(scan.schema, scan.batches()), call)

    def insert_overwrite(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Replace the partitions that occur in `rows` by them."""
        return self._write(Operation.INSERT_OVERWRITE, rows, call)

    def insert_overwrite_table(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Replace the whole table by `rows`."""
        return self._write(Operation.INSERT_OVERWRITE_TABLE, rows, call)

    def delete_partitions(
        self, partitions: str | Sequence[str], *, commit_metadata: Mapping[str, str] | None = None
    ) -> Outcome:
        """Delete whole partitions, named by their relative paths.

        Raises UserError naming a path that is no partition.
        """
        wanted = [path.strip("/") for path in text_list(partitions, "partitions", allow_empty=True)]
        table = self.refresh()
        known = {file_slice.partition for file_slice in load_slices(table, wanted)}
        for partition in wanted:
            if partition not in known:
                raise UserError(f"{partition!r} is not a partition of {self.location}", partition=partition)
        request = WriteRequest(
            operation=Operation.DELETE_PARTITION, partitions=tuple(wanted), extra=dict(commit_metadata or {})
        )
        return _settled(write(table, LocalEngine(), self._policies, request))

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        *,
        as_of: str | None = None,
        as_of_event_time: str | datetime | None = None,
        read_optimized: bool = False,
    ) -> TableScan:
        """Plan a read of the table as it is now, as it was at the instant `as_of`, or the version of an event time.

        `as_of_event_time` is ISO 8601 text or a datetime, UTC where no zone is named; see `version_at`.

        `read_optimized` reads base files alone: a merge-on-read table as of the last compaction of each file group.
        """
        if as_of is not None and as_of_event_time is not None:
            raise UserError(f"as_of={as_of!r} and as_of_event_time={str(as_of_event_time)!r}: give one of them")
        table = self.refresh()
        version: Version = SNAPSHOT
        if as_of is not None:
            version = TimeTravel(as_of)
        elif as_of_event_time is not None:
            version = CompletedUpTo(event_time_bound(table, as_of_event_time))
        query = ReadOptimized(version) if read_optimized else version
        return self._scan(table, query, columns, where)

    def incremental(
        self,
        begin: str | None = None,
        end: str | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        format: str = "latest_state",
    ) -> TableScan:
        """Plan a read of the rows that commits completed in (begin, end] wrote; newest versions, deletes not shown.

        With format="cdc" the answer is every change instead, deletes too: op (i, u or d), ts_ms (requested time of the
        commit, as text), and the row before and after as structs, one of them null for inserts and deletes. `columns`
        are then those of the structs, and `where` keeps changes whose row before or whose row after meets it. Commits
        come in the order in which they completed. Raises UserError unless the table was created with `cdc`.
        """
        check_format(format)
        query = Changes(begin, end) if format == CDC else Incremental(begin, end)
        return self._scan(self.refresh(), query, columns, where)

    def partitions(self) -> tuple[str, ...]:
        """Return the relative paths of partitions that hold data files ("" for a table without partitions)."""
        return tuple(sorted({file_slice.partition for file_slice in load_slices(self.refresh())}))

    def describe(self) -> dict[str, Any]:
        """Return what a person looks at to know the table and whether it needs a service, as plain values."""
        return describe(self.refresh())

    def health(self) -> TableHealth:
        """Return the numbers by which one sees whether a service is behind; one listing of the table."""
        return table_health(self.refresh(), small_file_bytes=self._policies.write.small_file_bytes)

    def validate(self, *, deep: bool = False, keys: str = "partition", spark: Any = None) -> ValidationReport:
        """Look for what is wrong with the table, and write nothing; `deep` reads all files of its newest slices.

        A record key is unique in its partition, and in the table only where its index is global. With keys="global"
        the finding `key.global` says how many keys are in several partitions, with examples; it reads the key column
        alone, in shares that fit the memory budget. Raises UserError for other values of `keys`.
        """
        loaded = load_table(self._env, allowed_functions=self.config.allowed_functions)
        engine = session_engine(spark, self._policies.write.memory_budget_bytes)
        return validate(loaded, engine, self._policies, deep=deep, keys=keys)

    def commits(self) -> tuple[tuple[Instant, CommitMetadata], ...]:
        """Return the completed writes with their metadata, in order of completion."""
        loaded = self.refresh()
        return tuple(loaded.store.commits(loaded.timeline.writes().by_completion()))

    def changes(self, begin: str | None, end: str | None = None) -> tuple[Instant, ...]:
        """Return the writes completed in (begin, end]."""
        return commits_in_range(self.refresh(), begin, end)

    def watermark(self) -> Watermark:
        """Return how far event time has come: before `value` no event is missing, by what its writers said."""
        return watermark(self.refresh(), self._policies.event_time)

    def version_at(self, event_time: str | datetime) -> EventTimeVersion:
        """Return the version that has all events before this time: ISO 8601 or a datetime, UTC if it names no zone."""
        return version_at(self.refresh(), event_time, self._policies.event_time)

    def last_commit_extra(self, key: str) -> str | None:
        """Return the value of `key` in the newest completed commit whose extra metadata has it."""
        return latest_extra(self.refresh(), key)

    def commits_with(self, key: str, value: str, *, archived: bool = True) -> Instant | None:
        """Return the newest completed commit whose extra metadata holds `key` = `value`.

        Archived ones are searched last, unless `archived` is False.
        """
        found = latest_commit(self.refresh(), key, value, archived=archived)
        return None if found is None else found[0]

    def rollback(self, instant: str, *, dry_run: bool = False, force: bool = False) -> RollbackPlan | NothingToDo:
        """Undo a pending write or the newest completed one; the plan says what was (dry run: would be) deleted.

        A compaction goes back to its plan. A pending write whose writer is alive is undone by `force` only. Raises
        UserError naming what is in the way: a write that completed after it, a savepoint, files that were cleaned.
        """
        return rollback(self.refresh(), self._policies.transaction, instant, dry_run=dry_run, force=force)

    def rollback_failed(self, *, dry_run: bool = False) -> FailedWrites:
        """Undo the pending writes whose writers died; those that are alive are left alone."""
        return roll_back_dead_writes(self.refresh(), self._policies.transaction, dry_run=dry_run)

    def savepoint(
        self, instant: str | None = None, *, user: str = "", comment: str = "", dry_run: bool = False
    ) -> Savepoint | NothingToDo:
        """Keep a completed write (the newest, if None): no clean removes its files, no rollback undoes it."""
        policy = self._policies.transaction
        return create_savepoint(self.refresh(), policy, instant, user=user, comment=comment, dry_run=dry_run)

    def delete_savepoint(self, instant: str, *, dry_run: bool = False) -> Instant:
        """Delete the savepoint of the write `instant`, which stays; raise UserError if there is none."""
        return delete_savepoint(self.refresh(), self._policies.transaction, instant, dry_run=dry_run)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, oldest commit first."""
        return savepoints(self.refresh())

    def restore(self, instant: str, *, dry_run: bool = False, force: bool = False) -> Restored | NothingToDo:
        """Go back to a savepoint or any completed write, or finish a restore to it that died.

        All that completed after it is undone, newest first, and all that is pending; stop the writers first. Raises
        UserError naming what is in the way: a savepoint after it, files that were cleaned, another pending restore;
        RetryableError if a writer is alive, unless `force`.
        """
        return restore(self.refresh(), self._policies.transaction, instant, dry_run=dry_run, force=force)

    def _scan(
        self, table: LoadedTable, query: Query, columns: str | Sequence[str] | None, where: str | None
    ) -> TableScan:
        request = ScanRequest(
            query=query,
            columns=None if columns is None else text_list(columns, "columns", ordered=True),
            where=where,
            memory_budget_bytes=self._policies.write.memory_budget_bytes,
            skips_damage=self._policies.write.skips_damage,
        )
        return TableScan(table=table, request=request)

    def _write(self, operation: Operation, rows: Any, call: WriteCall) -> Outcome:
        for name in call:
            if name not in WriteCall.__annotations__:
                raise UserError(
                    f"unknown argument {name!r}.{nearest(name, WriteCall.__annotations__)} Verbs take their rows and "
                    f"{', '.join(WriteCall.__annotations__)}.",
                    argument=name,
                )
        policies = _overridden(self._policies, call.get("options") or {})
        request = WriteRequest(
            operation=operation,
            frame=rows,
            extra=dict(call.get("commit_metadata") or {}),
            allow_empty=call.get("allow_empty", False),
            precondition=call.get("precondition"),
            columns=call.get("columns"),
        )
        engine = frame_engine(rows, policies.write.memory_budget_bytes)
        return _settled(write(self.refresh(), engine, policies, request))


def _overridden(policies: Policies, options: Mapping[str, str]) -> Policies:
    # Values are parsed together with those that they override: some need each other.
    check_known(options)
    return policies.override(options)


def _settled(outcome: Committed | NothingToDo | Conflict) -> Outcome:
    if isinstance(outcome, Conflict):
        raise ConflictError(
            f"another writer won{f' {outcome.tries} times' if outcome.tries > 1 else ''}: {outcome.reason}; nothing "
            "was written, run the operation again",
            winner=outcome.winner.requested,
        )
    return outcome
