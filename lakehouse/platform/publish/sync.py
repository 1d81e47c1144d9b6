"""Metastore sync: a Hive Metastore is told of a table, so that engines which know Hudi find it by name.

    load       the table: columns, partitions that hold data, newest write
    look       database, tables, names and details of all partitions in the metastore, in pages
    plan       both compared; a table of the name that is not this one ends the run before anything is touched
    apply      database, tables, partitions added, moved, dropped; last the commit that they are as of

It may die at any line, and run beside others: the next run compares anew, and does what is left. A failed sync is never
a failed commit, and no later one depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.platform.publish.sync_plan import Present, SyncFacts, SyncPlan, TablePlan, plan_sync, wanted_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTable:
    """What a sync did to one table of the metastore, by numbers of partitions."""

    table: str
    created: bool = False
    changes: tuple[str, ...] = ()
    added: int = 0
    altered: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did; `skipped` are partitions that cannot be told of, and why."""

    tables: tuple[SyncedTable, ...]
    skipped: Mapping[str, str]

    @property
    def did_something(self) -> bool:
        """Whether the metastore was told anything but the newest commit."""
        return any(t.created or t.changes or t.added or t.altered or t.dropped for t in self.tables)


def plan(table: Table, metastore: Metastore, *, force: bool = False) -> SyncPlan:
    """Return what a sync would do now, and write nothing.

    With `force` the table is listed, whatever is known of its partitions. Raises UserError if the metastore has another
    table of the name, RetryableError if it does not answer.
    """
    return _planned(table, metastore, force=force, save=False)


def sync(table: Table, metastore: Metastore, *, force: bool = False) -> SyncReport:
    """Tell the metastore all it lacks of the table; errors as for `plan`. Run again it does what is left."""
    planned = _planned(table, metastore, force=force, save=True)
    if any(t.create for t in planned.tables):
        metastore.create_database(planned.database)
    for told in planned.tables:
        _apply(told, metastore)
    return report_of(planned)


def report_of(planned: SyncPlan) -> SyncReport:
    """Return a plan as numbers."""
    tables = tuple(
        SyncedTable(
            table=f"{told.wanted.database}.{told.wanted.name}",
            created=told.create,
            changes=told.changes,
            added=len(told.add),
            altered=len(told.alter),
            dropped=len(told.drop),
        )
        for told in planned.tables
    )
    return SyncReport(tables=tables, skipped=planned.skipped)


def _planned(table: Table, metastore: Metastore, *, force: bool, save: bool) -> SyncPlan:
    facts = _facts(table.refresh(), force=force, save=save)
    policy = table.services_as_loaded.policies.sync
    present = {}
    for wanted in wanted_tables(facts, policy):
        found = _present(metastore, wanted.database, wanted.name)
        if found is not None:
            present[wanted.name] = found
    return plan_sync(facts, policy, present)


def _facts(table: LoadedTable, *, force: bool, save: bool) -> SyncFacts:
    schema = table_schema(table)
    if schema is None:
        raise UserError(f"{table.env.storage.root}: the table has no columns yet, so a metastore cannot be told of it")
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
    """Return the partitions that hold data, with the numbers of their files and bytes where those are known."""
    if not table.config.is_partitioned:
        return {}
    if table.config.layout == 1:
        return dict.fromkeys(sorted({file_slice.partition for file_slice in load_slices(table)}), ())
    known = load_statistics(table, save=save, rebuild=force)
    return {one.partition: (one.files, one.size_bytes) for one in partition_statistics(known)}


def _present(metastore: Metastore, database: str, name: str) -> Present | None:
    found = metastore.table(database, name)
    if found is None or not found.partition_columns:
        return None if found is None else Present(table=found)
    names = metastore.partition_names(database, name)
    return Present(table=found, names=names, partitions=metastore.partitions(database, name, names))


def _apply(told: TablePlan, metastore: Metastore) -> None:
    table = told.wanted
    if told.create:
        if not metastore.create_table(table):
            raise RetryableError(
                f"{metastore.name}: somebody else made {table.database}.{table.name} at the same time; run it again"
            )
    elif told.changes:
        metastore.alter_table(table)
    if told.add:
        metastore.add_partitions(table.database, table.name, told.add)
    if told.alter:
        metastore.alter_partitions(table.database, table.name, told.alter)
    if told.drop:
        metastore.drop_partitions(table.database, table.name, told.drop)
    if told.stamp:
        metastore.alter_table(replace(table, parameters={**table.parameters, **told.stamp}))
