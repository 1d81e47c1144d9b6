"""Metastore sync: declare a Hudi table in a metastore, so that engines with Hudi support find it by name.

    load       the table: columns, partitions with data, newest write
    read       tables and names of all partitions in the metastore; unless the sync is incremental, also their details
    plan       compare both; a different table with the same name ends the run before any change
    apply      database, tables, then partitions added, moved and dropped; last the commit that was synced
    verify     load, read and plan again after changes of partitions: a concurrent sync may have undone some
    record     next to the table: the time, the newest write and the settings, which decide when the service is due

A sync is incremental if the metastore's tables contain the commit of the last recorded sync with the same settings, and
the table has new writes since: those add and drop partitions, but do not change the others. Other syncs also compare
the details of partitions, such as locations, which only another program changes.

A sync may crash at any line and may run concurrently: the next one compares again and does the rest. A failed sync
never fails a commit.
"""

from __future__ import annotations

import re
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
from lakehouse.core.timeline.service_log import LastRun, read_last_run, record_run
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action, Timeline
from lakehouse.platform.metastore.protocol import HiveTable, Metastore
from lakehouse.platform.publish.sync_plan import (
    LAST_COMMIT,
    Present,
    SyncFacts,
    SyncPlan,
    TablePlan,
    format_differs,
    plan_sync,
    wanted_tables,
)
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.options.sync import SyncPolicy

#: Name of the service and its record next to the table; the record's fields with the newest synced write, and with the
#: pending write that it passed on a table without completion times.
SERVICE, COMPLETION, PASSED = "sync", "completion", "passed"
#: Policy fields that determine the metastore and the tables to write.
_TARGET = ("uris", "database", "table", "strategy", "snapshot_with_table_name", "timestamps")
#: Policy fields for the form of these tables; recorded if they differ from their defaults.
_FORM = (
    "tool",
    "skip_ro_suffix",
    "partition_fields",
    "partition_extractor",
    "decode_partition",
    "omit_metadata_fields",
    "sync_as_datasource",
    "table_properties",
    "serde_properties",
    "schema_piece",
    "glue_database",
    "glue_table",
    "glue_metadata_listing",
    "glue_region",
    "glue_endpoint",
    "glue_catalog",
)
#: Fields of the record that no decision compares: when details were compared, and the commit in the metastore.
COMPARED, STAMP = "compared", "stamp"
_HOUR_MS = 3_600_000
_S3 = re.compile("^s3[an]://")
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
    return _planned(
        loaded, policy, metastore, _Listing(force=force, save=False, last=_last(loaded, policy, force=force))
    )


def sync(table: Table, metastore: Metastore, *, force: bool = False) -> SyncReport:
    """Update the metastore to the state of the table; raises the errors of `plan`. A repeated call does the rest."""
    return sync_loaded(table.refresh(), table.services_as_loaded.policies.sync, metastore, force=force)


def sync_loaded(loaded: LoadedTable, policy: SyncPolicy, metastore: Metastore, *, force: bool = False) -> SyncReport:
    """Update the metastore to the state of a loaded table (see `sync`), and record that it was synced.

    A concurrent sync of an older state may undo a change. A sync that changed partitions therefore loads the table and
    compares again, so that the last one of several leaves the newest state.
    """
    done: list[SyncReport] = []
    last = _last(loaded, policy, force=force)
    compared = str(loaded.env.clock.now_ms())
    while not done or (done[-1].did_something and len(done) < _ROUNDS):
        loaded = loaded.refresh() if done else loaded
        listing = _Listing(force=force and not done, save=True, last=last)
        planned = _planned(loaded, policy, metastore, listing)
        if policy.auto_create_database and any(t.create for t in planned.tables):
            metastore.create_database(planned.database)
        for table_plan in planned.tables:
            _apply(table_plan, metastore)
        done.append(report_of(planned))
        if last is not None and planned.is_incremental:
            # The next comparison in this sync finds the commit that this one stored.
            compared, last = str(compared_ms(last)), replace(last, state={**last.state, STAMP: _stamp(loaded)})
        else:
            last = None
    # Recorded even without a change: the service compares again when the last comparison is too old.
    own = {COMPARED: compared, STAMP: _stamp(loaded)}
    record_run(loaded.env, SERVICE, state={**synced_state(loaded, policy), **own})
    return _sum(done)


def synced_state(loaded: LoadedTable, policy: SyncPolicy) -> dict[str, str]:
    """Return the inputs of a loaded table's sync: its newest write, and the settings that identify the target.

    Without completion times a pending write can complete before the newest one, so it is part of the state, too.
    """
    writes = synced_writes(loaded).by_completion()
    settings = {name: str(getattr(policy, name)) for name in _TARGET}
    default = SyncPolicy()
    form = {name: str(getattr(policy, name)) for name in _FORM if getattr(policy, name) != getattr(default, name)}
    passed = hole(loaded)
    pending = {PASSED: passed} if passed else {}
    return {COMPLETION: writes[-1].completion if writes else "", **pending, **settings, **form}


def compared_state(last: LastRun) -> dict[str, str]:
    """Return the part of a recorded state that `synced_state` returns."""
    return {name: value for name, value in last.state.items() if name not in (COMPARED, STAMP)}


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


def compared_ms(last: LastRun) -> int:
    """Return when a sync compared the details of all partitions last, in UTC milliseconds."""
    text = last.state.get(COMPARED, "")
    return int(text) if text.isdecimal() else last.at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Whether the partitions are listed instead of read from statistics, and whether new statistics are stored.

    `last` is the record from which an incremental sync may continue.
    """

    force: bool
    save: bool
    last: LastRun | None = None


def _last(loaded: LoadedTable, policy: SyncPolicy, *, force: bool) -> LastRun | None:
    """Return the last sync if this one may be incremental: same settings, new writes, a recent full comparison."""
    last = read_last_run(loaded.env, SERVICE) if policy.incremental and not force else None
    if last is None or last.failed or not last.state.get(STAMP):
        return None
    now, before = synced_state(loaded, policy), compared_state(last)
    has_new_writes = now.pop(COMPLETION) > before.pop(COMPLETION, "")
    age_ms = loaded.env.clock.now_ms() - compared_ms(last)
    is_recent = not policy.verify_hours or age_ms < policy.verify_hours * _HOUR_MS
    return last if now == before and has_new_writes and is_recent else None


def _stamp(loaded: LoadedTable) -> str:
    """Return the requested time of the newest write, which a sync stores in the metastore's tables."""
    writes = loaded.timeline.writes().by_completion()
    return writes[-1].requested if writes else ""


def _planned(loaded: LoadedTable, policy: SyncPolicy, metastore: Metastore, listing: _Listing) -> SyncPlan:
    if not policy.renamed_columns:
        require_present_names(loaded, "a metastore sync without lakehouse.sync.renamed.columns=true")
    facts = _facts(loaded, force=listing.force, save=listing.save)
    if policy.is_glue:
        # Glue lists no files, so it needs no sizes. Athena supports the scheme s3 only.
        facts = replace(facts, sizes={}, location=_S3.sub("s3://", facts.location))
    wanted = {table.name: table for table in wanted_tables(facts, policy)}
    stored = {name: metastore.table(table.database, name) for name, table in wanted.items()}
    is_incremental = listing.last is not None and all(
        table is not None
        and table.parameters.get(LAST_COMMIT) == listing.last.state[STAMP]
        and not format_differs(wanted[name].format, table.format)
        for name, table in stored.items()
    )
    present = {
        name: _present(metastore, table, details=not is_incremental)
        for name, table in stored.items()
        if table is not None
    }
    planned = plan_sync(facts, policy, present)
    return replace(planned, metastore=metastore.name, is_incremental=is_incremental)


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
        has_completion_times=table.config.layout.has_completion_times,
    )


def _partitions(table: LoadedTable, *, force: bool, save: bool) -> dict[str, tuple[int, ...]]:
    """Return the partitions with data, with the number of their files and bytes if they are known."""
    if not table.config.is_partitioned:
        return {}
    if not table.config.layout.has_completion_times:
        return dict.fromkeys(sorted(set(load_slices(table).partitions.to_pylist())), ())
    statistics = load_statistics(table, save=save, rebuild=force)
    return {one.partition: (one.files, one.size_bytes) for one in partition_statistics(statistics)}


def _present(metastore: Metastore, table: HiveTable, *, details: bool) -> Present:
    if not table.partition_columns:
        return Present(table=table)
    names = metastore.partition_names(table.database, table.name)
    partitions = metastore.partitions(table.database, table.name, names) if details else ()
    return Present(table=table, names=names, partitions=partitions)


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
