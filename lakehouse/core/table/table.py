"""Table: the public API of a table, thin methods over `lakehouse.core.operations`. Its writes are in `writes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.layout.registry import NEWEST
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.create.declare import (
    TableDeclaration,
    declared_properties,
)
from lakehouse.core.operations.load.commits import archived_writes, latest_commit, latest_extra
from lakehouse.core.operations.load.savepoints import savepoints
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, load_table, require_merger, stored_options
from lakehouse.core.operations.read.cdc import CDC, check_format
from lakehouse.core.operations.read.commit_range import commits_in_range
from lakehouse.core.operations.read.event_time import event_time_bound, version_at, watermark
from lakehouse.core.operations.read.queries import (
    EARLIEST,
    SNAPSHOT,
    Changes,
    CompletedUpTo,
    Incremental,
    ReadOptimized,
    TimeTravel,
    Version,
    instant_text,
    range_bound,
)
from lakehouse.core.planning.event_time import EventTimeVersion, Watermark
from lakehouse.core.planning.schema import normalise, plan_schema
from lakehouse.core.rows.stored_names import without_stored_names
from lakehouse.core.state.table_config import COPY_ON_WRITE
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.clock import Clock
from lakehouse.core.table import operations
from lakehouse.core.table.arguments import checks_arguments, option_texts
from lakehouse.core.table.describe import shown_table
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.writes import TableWrites, with_overrides
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata, RollbackPlan
from lakehouse.model.display import Readable, Shown
from lakehouse.model.instant import Instant, Timeline
from lakehouse.model.keys import KeyGeneratorType, TimestampFormat
from lakehouse.model.restore import Savepoint
from lakehouse.model.texts import text_list
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.schema import SchemaPolicy

if TYPE_CHECKING:
    # Types of results; their modules are imported with the operations.
    from lakehouse.core.operations.read.health import TableHealth
    from lakehouse.core.operations.undo.restore import Restored
    from lakehouse.core.operations.undo.rollback import FailedWrites
    from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
    from lakehouse.core.table.alter import AlterBuilder
    from lakehouse.core.table.inspection import TableInspection
    from lakehouse.core.table.metadata import TableMetadata
    from lakehouse.core.table.services import TableServices
    from lakehouse.model.validation import ValidationReport
    from lakehouse.spec.contracts.tables import TableSummary

#: Seconds between the switch to another table version and the deletion of the old timeline.
GRACE_S = 10


@checks_arguments
class Table(TableWrites, Readable):
    """A table. Each call uses the state of the table at the time of the call; a write returns after its commit."""

    @classmethod
    def open(
        cls,
        location: str | PathLike[str],
        *,
        options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        allowed_functions: str | Sequence[str] = (),
        env: Env | None = None,
    ) -> Table:
        """Open the table at `location`.

        Functions to which the table refers, such as mergers, are only loaded if `allowed_functions` or the environment
        variable LAKEHOUSE_ALLOWED_FUNCTIONS allows them. Reads and writes that need a merger which is not allowed raise
        UnsupportedError; all other operations work.

        Args:
            location: URL or path of the table.
            options: hoodie.* options that override the stored ones.
            storage_options: Options of the storage, such as credentials.
            allowed_functions: Names `package.module:function` or patterns `package.*`.
            env: Storage, clock, timers and ids; by default provided by this machine.

        Raises:
            UserError: There is no table, its merger cannot be loaded, or an option is unknown.
            UnsupportedError: The table has a version or feature that is not supported.
        """
        env = env or Env(storage=open_storage(fspath(location), storage_options or {}))
        loaded = load_table(env, allowed_functions=text_list(allowed_functions, "allowed_functions"))
        require_merger(loaded.config)
        policies = parse_options(stored_options(loaded.config))
        return cls(env, with_overrides(policies, options or {}), loaded)

    # parameters: the parts of a table declaration, each with its own default
    @classmethod
    def create(
        cls,
        location: str | PathLike[str],
        *,
        name: str,
        record_key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        ordering: str | Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        table_type: str = COPY_ON_WRITE,
        cdc: str | None = None,
        key_generator: KeyGeneratorType | str | None = None,
        timestamp: TimestampFormat | None = None,
        merge_mode: str | None = None,
        merger: str | None = None,
        column_groups: Mapping[str, str | Sequence[str]] | None = None,
        partial_update: str | None = None,
        unavailable_value: str | None = None,
        delete_field: str | None = None,
        delete_marker: str | None = None,
        payload_class: str | None = None,
        table_id: str | None = None,
        options: Mapping[str, str] | None = None,
        store_options: bool = True,
        storage_options: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        env: Env | None = None,
    ) -> Table:
        """Create a table and open it; name and location are required.

        As in Hudi, the record key is unique in each partition, not in the whole table: a row whose partition changed
        becomes a second row. The key is unique in the table with a global index (`hoodie.index.type=GLOBAL_SIMPLE`) or
        without partitions. `validate(keys="global")` finds keys that are in several partitions.

        Without a record key, as in Hudi, each inserted row gets a generated key, and the table has no upserts.

        Args:
            location: URL or path of the table.
            name: Name of the table.
            record_key: Column or columns that identify a record. Leave it out for rows that are only appended.
            partition_by: Column or columns of the partition path.
            ordering: Column or columns that decide which version of a record is newer.
            schema: Data columns; without it the first write declares them.
            table_type: COPY_ON_WRITE or MERGE_ON_READ, or Hudi's abbreviation COW or MOR.
            cdc: Content of change logs, such as DATA_BEFORE_AFTER; None for a table without change logs.
            key_generator: Key generator; by default it follows from the columns.
            timestamp: Formats of TIMESTAMP partition columns.
            merge_mode: EVENT_TIME_ORDERING (the default with `ordering`), COMMIT_TIME_ORDERING (the default without),
                or CUSTOM (the default with `merger`).
            merger: Function `package.module:function` that merges two versions of a record.
            column_groups: Columns by their ordering column, so that several writers can fill one record.
            partial_update: IGNORE_DEFAULTS (a null keeps the stored value) or FILL_UNAVAILABLE (`unavailable_value`
                does).
            unavailable_value: Value for "not available"; by default the marker of Debezium.
            delete_field: Column that marks deletes: a row is a delete if its value is `delete_marker`.
            delete_marker: Value of `delete_field` in deletes.
            payload_class: Payload class of Hudi, such as the full name of PartialUpdateAvroPayload, in place of
                `merge_mode`, `partial_update` and the delete marker.
            table_id: Id of a table that is created again in place of a lost one.
            options: hoodie.* options of the table, its writes and services.
            store_options: Store all options in the table, as defaults for each process that opens it. Otherwise
                only options that must not change are stored, and the others apply to the returned object.
            storage_options: Options of the storage, such as credentials.
            exist_ok: Open the table if it exists already.
            env: Storage, clock, timers and ids; by default provided by this machine.

        Raises:
            UserError: A table exists already, options contradict each other, or `schema` lacks a key, partition,
                ordering or delete column.
        """
        env = env or Env(storage=open_storage(fspath(location), storage_options or {}))
        declaration = TableDeclaration(
            name=name,
            record_key=text_list(record_key, "record_key", ordered=True),
            partition_by=text_list(partition_by, "partition_by", ordered=True),
            ordering=text_list(ordering, "ordering", ordered=True),
            schema=None if schema is None else arrow_to_avro(normalise(schema), table=name),
            key_generator=key_generator,
            timestamp=timestamp,
            merge_mode=merge_mode,
            merger=merger,
            column_groups=column_groups or {},
            partial_update=partial_update,
            unavailable_value=unavailable_value,
            delete_field=delete_field,
            delete_marker=delete_marker,
            payload_class=payload_class,
            table_type=table_type,
            cdc=cdc,
            table_id=table_id,
            options=option_texts(options or {}),
            stores_options=store_options,
        )
        if schema is not None:
            plan_schema(None, schema, SchemaPolicy(), required=declaration.named_columns)
        policies = parse_options(declaration.call_options())
        operations.create_table(env, declared_properties(declaration), exist_ok=exist_ok, policies=policies)
        allowed = (declaration.merger,) if declaration.merger else ()
        return cls.open(location, options=declaration.call_options(), allowed_functions=allowed, env=env)

    # parameters: the source, and the parts of a table declaration
    @classmethod
    def bootstrap(
        cls,
        location: str | PathLike[str],
        *,
        source: str | PathLike[str],
        name: str,
        record_key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        mode: str = "metadata",
        partition_pattern: str = "",
        ordering: str | Sequence[str] | None = None,
        table_type: str = COPY_ON_WRITE,
        options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        env: Env | None = None,
    ) -> Table:
        """Create a table from a folder of Parquet files, and return it; the files stay as they are.

        The table becomes visible when it is complete. Repeat a call that was killed: it skips the partitions that are
        done.

        Args:
            location: URL or path of the new table, outside of the source.
            source: URL or path of the files: all in one folder, or in folders of partitions.
            name: Name of the table.
            record_key: Columns of the record key.
            partition_by: Partition columns, one for each level of folders; by default their names are taken from
                folders `column=value`.
            mode: `metadata` writes keys only, and reads find the other columns in the source files; `full` copies all
                rows.
            partition_pattern: Regular expression for whole partition paths, such as `day=2026-.*`: partitions that it
                matches have `mode`, all others have the other mode.
            ordering: Columns by which the newer version of a record is chosen.
            table_type: COPY_ON_WRITE or MERGE_ON_READ.
            options: hoodie.* options of the table, its writes and services.
            storage_options: Options of both storages, such as credentials.
            env: Storage, clock, timers and ids; by default provided by this machine.

        Raises:
            UserError: There is a table at the location, the folders are not partitions, a row has no key, or an
                earlier call that did not end had other arguments.
            UnsupportedError: The index of the table needs copied rows.
        """
        env = env or Env(storage=open_storage(fspath(location), storage_options or {}))
        declaration = TableDeclaration(
            name=name,
            record_key=text_list(record_key, "record_key", ordered=True),
            partition_by=text_list(partition_by, "partition_by", ordered=True),
            ordering=text_list(ordering, "ordering", ordered=True),
            table_type=table_type,
            options=option_texts(options or {}),
        )
        request = operations.BootstrapRequest(
            source=fspath(source), mode=mode, partition_pattern=partition_pattern, declaration=declaration
        )
        operations.bootstrap(env, request, storage_options=storage_options)
        return cls.open(location, options=declaration.call_options(), env=env)

    def with_options(self, options: Mapping[str, str]) -> Table:
        """Return a copy of the table with additional options, which override the options with which it was opened."""
        return Table(self._env, with_overrides(self._policies, options), self._loaded)

    @property
    def clock(self) -> Clock:
        """The clock of the operations on this table."""
        return self._env.clock

    @property
    def name(self) -> str:
        """The table's name."""
        return self._loaded.config.name

    @property
    def timeline(self) -> Timeline:
        """The current active timeline."""
        return self.refresh().timeline

    @property
    def schema(self) -> pa.Schema:
        """The data columns, without meta columns."""
        schema = table_schema(self.refresh())
        return pa.schema([]) if schema is None else without_stored_names(schema)

    def archived(self) -> Timeline:
        """Return the completed writes of the archived timeline."""
        return archived_writes(self.refresh())

    @property
    def loaded(self) -> LoadedTable:
        """The state of the table at its last load."""
        return self._loaded

    def alter(self) -> AlterBuilder:
        """Return a builder for changes of columns and properties, which one commit of metadata makes.

        table.alter().rename_column("customer", "client").drop_column("note").execute()
        """
        builder: AlterBuilder = operations.AlterBuilder(self.refresh, self._policies)
        return builder

    @property
    def services(self) -> TableServices:
        """The table services of this table."""
        return operations.TableServices(table=self.refresh(), policies=self._policies)

    @property
    def metadata(self) -> TableMetadata:
        """The metadata table of this table."""
        return operations.TableMetadata(table=self.refresh(), policies=self._policies)

    @property
    def services_as_loaded(self) -> TableServices:
        """The table services on the state of the last load, for several questions about one state; `run` reloads."""
        return operations.TableServices(table=self._loaded, policies=self._policies)

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        *,
        as_of: str | datetime | None = None,
        as_of_event_time: str | datetime | None = None,
        read_optimized: bool = False,
    ) -> TableScan:
        """Return a read of the current version or an earlier one.

        Args:
            columns: Columns of the result; all by default.
            where: SQL condition on the rows.
            as_of: Read the table as of this instant: digits of an instant time, an ISO 8601 string, or a datetime, UTC
                without a zone.
            as_of_event_time: Read the version of this event time: an ISO 8601 string or a datetime, UTC without a zone;
                see `version_at`.
            read_optimized: Read base files only. Each file group of a merge-on-read table is then as old as its last
                compaction.

        Raises:
            UserError: `as_of` and `as_of_event_time` are both given, or no commit contains event times. The plan of
                the scan raises it, too, if `as_of` is before the first commit.
        """
        if as_of is not None and as_of_event_time is not None:
            raise UserError(f"as_of={as_of!r} and as_of_event_time={str(as_of_event_time)!r}: give one of them")
        table = self.refresh()
        version: Version = SNAPSHOT
        if as_of is not None:
            version = TimeTravel(instant_text(as_of))
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
        """Return a read of the rows that the commits completed in (begin, end] wrote, without deletes.

        With format="latest_state" the result contains the newest version of each row. With format="cdc" it contains
        every change, in the order in which the commits completed: op (i, u or d), ts_ms (requested time of the commit,
        as a string), and the row before and after as structs; `before` is null for inserts, `after` for deletes.

        Args:
            begin: Completion time after which commits are read, or "earliest"; without it only the last commit is read.
            end: Completion time of the last commit; by default the newest.
            columns: Columns of the result; with format="cdc" the columns of the structs.
            where: SQL condition on the rows. With format="cdc" a change is kept if its row before or its row
                after meets the condition.
            format: "latest_state" or "cdc".

        In tables of version 6, bounds are requested times, and the range ends before the oldest pending write.

        Raises:
            UserError: The format is unknown, or the table was created without `cdc`.
            RetryableError: A bound is after a pending write of a table of version 6, whose rows would be missed.
        """
        check_format(format)
        if begin not in (None, EARLIEST) and end is not None and str(range_bound(begin)) > str(range_bound(end)):
            raise UserError(f"begin={begin!r} is after end={end!r}, so the range has no commit; exchange the two")
        query = Changes(begin, end) if format == CDC else Incremental(begin, end)
        return self._scan(self.refresh(), query, columns, where)

    def partitions(self) -> tuple[str, ...]:
        """Return the relative paths of partitions with data files; the path is "" for a table without partitions."""
        return tuple(sorted(pc.unique(load_slices(self.refresh()).partitions).to_pylist()))

    def describe(self) -> TableSummary:
        """Return a summary of the table: configuration, schema, partitions, plans, latest commits."""
        loaded = self.refresh()
        return operations.describe(
            loaded,
            operations.partition_expiry(loaded, self._policies),
            small_bytes=self._policies.write.small_file_bytes,
        )

    def health(self) -> TableHealth:
        """Return measures that show whether a table service is overdue; the table is listed once."""
        return operations.table_health(self.refresh(), small_file_bytes=self._policies.write.small_file_bytes)

    @property
    def inspection(self) -> TableInspection:
        """Return details for people: bars of the timeline, decoded instants, pages of file groups."""
        return operations.TableInspection(refresh=self.refresh, policies=self._policies)

    def validate(self, *, deep: bool = False, keys: str = "partition", spark: Any = None) -> ValidationReport:
        """Check the invariants of the table and report violations; nothing is written.

        Args:
            deep: Also read all files of the newest slices.
            keys: "partition", or "global" to also find keys that are in several partitions. The finding `key.global`
                then contains their number and examples. Only the key column is read.
            spark: Session that runs the tasks; by default threads of this process.

        Raises:
            UserError: `keys` is another value.
        """
        loaded = load_table(self._env, allowed_functions=self.config.allowed_functions)
        engine = session_engine(spark, self._policies.write.memory_budget_bytes)
        return operations.validate(loaded, engine, self._policies, deep=deep, keys=keys)

    def commits(self) -> tuple[tuple[Instant, CommitMetadata], ...]:
        """Return the completed writes of the active timeline with their metadata, in order of completion."""
        loaded = self.refresh()
        return tuple(loaded.store.commits(loaded.timeline.writes().by_completion()))

    def changes(self, begin: str | None, end: str | None = None) -> tuple[Instant, ...]:
        """Return the writes completed in (begin, end]; in tables of version 6, those before the oldest pending write.

        Raises RetryableError if a bound is after that write.
        """
        return commits_in_range(self.refresh(), begin, end)

    def watermark(self) -> Watermark:
        """Return the watermark of event time: according to the writers, no event before `value` is missing."""
        return watermark(self.refresh(), self._policies.event_time)

    def version_at(self, event_time: str | datetime) -> EventTimeVersion:
        """Return the version with all events before a time: an ISO 8601 string or a datetime, UTC without a zone."""
        return version_at(self.refresh(), event_time, self._policies.event_time)

    def last_commit_extra(self, key: str) -> str | None:
        """Return the value of `key` from the newest completed commit whose extra metadata contains it."""
        return latest_extra(self.refresh(), key)

    def commits_with(self, key: str, value: str, *, archived: bool = True) -> Instant | None:
        """Return the newest completed commit whose extra metadata has `value` for `key`.

        The archived timeline is searched last, unless `archived` is False.
        """
        commit = latest_commit(self.refresh(), key, value, archived=archived)
        return None if commit is None else commit[0]

    def rollback(self, instant: str, *, dry_run: bool = False, force: bool = False) -> RollbackPlan | NothingToDo:
        """Roll back a pending write or the newest completed write, and return the plan of deleted files.

        A compaction returns to its scheduled plan. An active write is only rolled back with `force`. With `dry_run`
        nothing is deleted.

        Raises:
            UserError: A later write, a savepoint or cleaned files prevent the rollback.
        """
        return operations.rollback(self.refresh(), self._policies.transaction, instant, dry_run=dry_run, force=force)

    def rollback_failed(self, *, dry_run: bool = False) -> FailedWrites:
        """Roll back the failed writes, whose heartbeats expired; active writes are not changed."""
        return operations.roll_back_expired_writes(self.refresh(), self._policies.transaction, dry_run=dry_run)

    def savepoint(
        self, instant: str | None = None, *, user: str = "", comment: str = "", dry_run: bool = False
    ) -> Savepoint | NothingToDo:
        """Keep a completed write, by default the newest: no clean removes its files and no rollback undoes it."""
        policy = self._policies.transaction
        return operations.create_savepoint(self.refresh(), policy, instant, user=user, comment=comment, dry_run=dry_run)

    def delete_savepoint(self, instant: str, *, dry_run: bool = False) -> Instant:
        """Delete the savepoint of the write `instant`, not the write; raise UserError if there is no such savepoint."""
        return operations.delete_savepoint(self.refresh(), self._policies.transaction, instant, dry_run=dry_run)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, ordered by the commit that they keep, oldest first."""
        return savepoints(self.refresh())

    def restore(self, instant: str, *, dry_run: bool = False, force: bool = False) -> Restored | NothingToDo:
        """Restore the table to a savepoint or a completed write, or continue a failed restore to it.

        All later writes are undone, newest first, and all pending writes. Stop the writers first.

        Raises:
            UserError: A later savepoint, cleaned files or another pending restore prevent the restore.
            RetryableError: A write is active, and `force` is False.
        """
        return operations.restore(self.refresh(), self._policies.transaction, instant, dry_run=dry_run, force=force)

    def upgrade(
        self, to: int | str = NEWEST.version, *, dry_run: bool = False, grace_s: int = GRACE_S, spark: Any = None
    ) -> VersionPlan | NothingToDo:
        """Change the table to a newer table version, or continue an upgrade that failed.

        Failed writes are rolled back, and log files of version 6 are compacted first. The metadata table is built
        again. Readers see the table as before or after the change.

        No catalog records the call, and services of a catalog do not wait for it. The lock of the table, pending
        instants and a mark in the timeline protect the table: a service that runs at the same time, or this call, ends
        with an error before it changes anything. `Catalog.change_version` is the recorded run.

        Args:
            to: The new version; the present version abandons an unfinished change to another version.
            dry_run: Return the plan with its blockers and the readers that are lost, and change nothing.
            grace_s: Seconds for which the old timeline stays readable for reads that began before the change.
            spark: Session whose executors compact; None means threads of this process.

        Raises:
            UserError: The version is not newer, or an action is pending that has to be finished first.
            UnsupportedError: A feature of the table prevents the upgrade.
            RetryableError: A writer is active, or a restore is not finished.
        """
        request = operations.VersionRequest(to=to, upgrade=True, dry_run=dry_run, grace_s=grace_s)
        return self._change_version(request, spark)

    def downgrade(
        self, to: int | str, *, dry_run: bool = False, grace_s: int = GRACE_S, spark: Any = None
    ) -> VersionPlan | NothingToDo:
        """Change the table to an older table version, for readers of older releases; see `upgrade`.

        All log files are compacted first. The metadata table is built again with the indexes that the older version
        has.
        """
        request = operations.VersionRequest(to=to, upgrade=False, dry_run=dry_run, grace_s=grace_s)
        return self._change_version(request, spark)

    def _change_version(self, request: VersionRequest, spark: Any) -> VersionPlan | NothingToDo:
        engine = session_engine(spark, self._policies.write.memory_budget_bytes)
        outcome = operations.change_version(self.refresh(), engine, self._policies, request)
        self.refresh()
        return outcome

    def _shown(self) -> Shown:
        return shown_table(self._loaded)
