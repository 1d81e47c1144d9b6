"""Metastore sync: declare a Hudi table in a Hive Metastore, so that engines with Hudi support find it by name.

    load       the table: columns, partitions with data, newest write
    read       database, tables, names and details of all partitions in the metastore, in pages
    plan       compare both; a different table with the same name ends the run before any change
    apply      database, tables, then partitions added, moved and dropped; last the commit that was synced
    verify     load, read and plan again after changes of partitions: a concurrent sync may have undone some
    record     next to the table: the time, the newest write and the settings, which decide when the service is due

A sync may crash at any line and may run concurrently: the next one compares again and does the rest. A failed sync
never fails a commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.operations.load.renamed_files import require_present_names
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import hole
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.service_log import record_run
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action, Timeline
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.platform.publish.sync_plan import Present, SyncFacts, SyncPlan, TablePlan, plan_sync, wanted_tables
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.options.sync import SyncPolicy

#: Name of the service and its record next to the table; the record's fields with the newest synced write, and with the
#: pending write that it passed on a table without completion times.
SERVICE, COMPLETION, PASSED = "sync", "completion", "passed"
#: Policy fields that determine the metastore and the tables to write.
_TARGET = ("uris", "database", "table", "strategy", "snapshot_with_table_name", "timestamps")
#: Maximum number of comparisons per sync; the next sync repairs changes that concurrent syncs undo later.
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """Outcome of a sync; `skipped` maps partitions that Hive cannot represent to the reason.

    `wrote` is true if the metastore was changed.
    """

    tables: tuple[SyncedTable, ...]
    skipped: Mapping[str, str]
    wrote: bool = True

    @property
    def did_something(self) -> bool:
        """Return whether the sync changed more than the synced commit."""
        return any(t.created or t.changes or t.added or t.altered or t.dropped for t in self.tables)


def plan(table: Table, metastore: Metastore, *, force: bool = False) -> SyncPlan:
    """Return the plan of a sync now, without a write.

    With `force` the table is listed instead of using its stored partition statistics. Raises UserError if the metastore
    contains a different table with the name, RetryableError if it does not answer. Raises UnsupportedError if older
    files have other names for a column, and the policy does not accept this.
    """
    return plan_loaded(table.refresh(), table.services_as_loaded.policies.sync, metastore, force=force)


def plan_loaded(loaded: LoadedTable, policy: SyncPolicy, metastore: Metastore, *, force: bool = False) -> SyncPlan:
    """Plan the sync of a loaded table; see `plan`."""
    return _planned(loaded, policy, metastore, _Listing(force=force, save=False))


def sync(table: Table, metastore: Metastore, *, force: bool = False) -> SyncReport:
    """Update the metastore to the state of the table; raises the errors of `plan`. A repeated call does the rest."""
    return sync_loaded(table.refresh(), table.services_as_loaded.policies.sync, metastore, force=force)


def sync_loaded(loaded: LoadedTable, policy: SyncPolicy, metastore: Metastore, *, force: bool = False) -> SyncReport:
    """Update the metastore to the state of a loaded table (see `sync`), and record that it was synced.

    A concurrent sync of an older state may undo a change. A sync that changed partitions therefore loads the table and
    compares again, so that the last one of several leaves the newest state.
    """
    done: list[SyncReport] = []
    while not done or (done[-1].did_something and len(done) < _ROUNDS):
        loaded = loaded.refresh() if done else loaded
        planned = _planned(loaded, policy, metastore, _Listing(force=force and not done, save=True))
        if any(t.create for t in planned.tables):
            metastore.create_database(planned.database)
        for table_plan in planned.tables:
            _apply(table_plan, metastore)
        done.append(report_of(planned))
    # Recorded even without a change: the service compares again when the last comparison is too old.
    record_run(loaded.env, SERVICE, state=synced_state(loaded, policy))
    return _sum(done)


def synced_state(loaded: LoadedTable, policy: SyncPolicy) -> dict[str, str]:
    """Return the inputs of a loaded table's sync: its newest write, and the settings that identify the target.

    Without completion times a pending write can complete before the newest one, so it is part of the state, too.
    """
    writes = synced_writes(loaded).by_completion()
    settings = {name: str(getattr(policy, name)) for name in _TARGET}
    passed = hole(loaded)
    return {COMPLETION: writes[-1].completion if writes else "", **({PASSED: passed} if passed else {}), **settings}


def synced_writes(loaded: LoadedTable) -> Timeline:
    """Return the completed writes that can change partitions or columns.

    Compactions, the commits of a merge-on-read table, change neither.
    """
    writes = loaded.timeline.writes()
    return writes.where(action=(Action.DELTACOMMIT, Action.REPLACECOMMIT)) if loaded.config.is_merge_on_read else writes


def report_of(planned: SyncPlan) -> SyncReport:
    """Return the report of an applied plan."""
    tables = tuple(
        SyncedTable(
            table=f"{table_plan.wanted.database}.{table_plan.wanted.name}",
            created=table_plan.create,
            changes=table_plan.changes,
            added=len(table_plan.add),
            altered=len(table_plan.alter),
            dropped=len(table_plan.drop),
        )
        for table_plan in planned.tables
    )
    return SyncReport(tables=tables, skipped=planned.skipped, wrote=not planned.is_empty)


def _sum(reports: Sequence[SyncReport]) -> SyncReport:
    """Combine the reports from all rounds of a sync; the skipped partitions are from the last round."""
    tables: dict[str, SyncedTable] = {}
    for table in (table for report in reports for table in report.tables):
        one = tables.get(table.table, SyncedTable(table=table.table))
        tables[table.table] = SyncedTable(
            table=table.table,
            created=one.created or table.created,
            changes=tuple(dict.fromkeys((*one.changes, *table.changes))),
            added=one.added + table.added,
            altered=one.altered + table.altered,
            dropped=one.dropped + table.dropped,
        )
    wrote = any(report.wrote for report in reports)
    return SyncReport(tables=tuple(tables.values()), skipped=reports[-1].skipped, wrote=wrote)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Whether the partitions are listed instead of read from statistics, and whether new statistics are stored."""

    force: bool
    save: bool


def _planned(loaded: LoadedTable, policy: SyncPolicy, metastore: Metastore, listing: _Listing) -> SyncPlan:
    if not policy.renamed_columns:
        require_present_names(loaded, "a metastore sync without lakehouse.sync.renamed.columns=true")
    facts = _facts(loaded, force=listing.force, save=listing.save)
    present = {}
    for wanted in wanted_tables(facts, policy):
        existing = _present(metastore, wanted.database, wanted.name)
        if existing is not None:
            present[wanted.name] = existing
    return replace(plan_sync(facts, policy, present), metastore=metastore.name)


def _facts(table: LoadedTable, *, force: bool, save: bool) -> SyncFacts:
    schema = table_schema(table)
    if schema is None:
        raise UserError(
            f"{table.env.storage.root}: the table has no columns yet and cannot be synced; write to it first"
        )
    writes = table.timeline.writes().by_completion()
    newest = writes[-1] if writes else None
    partitions = _partitions(table, force=force, save=save)
    return SyncFacts(
        name=table.config.name,
        location=table.env.storage.root.rstrip("/"),
        is_merge_on_read=table.config.is_merge_on_read,
        schema=schema,
        keys=table.config.keys,
        partitions=tuple(sorted(partitions)),
        sizes=partitions,
        last_requested=newest.requested if newest else "",
        last_completed=newest.completion if newest else "",
    )


def _partitions(table: LoadedTable, *, force: bool, save: bool) -> dict[str, tuple[int, ...]]:
    """Return the partitions with data, with the number of their files and bytes if they are known."""
    if not table.config.is_partitioned:
        return {}
    if not table.config.layout.has_completion_times:
        return dict.fromkeys(sorted(set(load_slices(table).partitions.to_pylist())), ())
    statistics = load_statistics(table, save=save, rebuild=force)
    return {one.partition: (one.files, one.size_bytes) for one in partition_statistics(statistics)}


def _present(metastore: Metastore, database: str, name: str) -> Present | None:
    stored = metastore.table(database, name)
    if stored is None or not stored.partition_columns:
        return None if stored is None else Present(table=stored)
    names = metastore.partition_names(database, name)
    return Present(table=stored, names=names, partitions=metastore.partitions(database, name, names))


def _apply(plan: TablePlan, metastore: Metastore) -> None:
    table = plan.wanted
    if plan.create:
        if not metastore.create_table(table):
            raise RetryableError(
                f"{metastore.name}: another program created {table.database}.{table.name} at the same time; run again"
            )
    elif plan.changes:
        metastore.alter_table(table)
    if plan.add:
        metastore.add_partitions(table.database, table.name, plan.add)
    if plan.alter:
        metastore.alter_partitions(table.database, table.name, plan.alter)
    if plan.drop:
        metastore.drop_partitions(table.database, table.name, plan.drop)
    if plan.stamp:
        metastore.alter_table(replace(table, parameters={**table.parameters, **plan.stamp}))
