"""Upgrade or downgrade a table to another version (V6-12).

    metadata table of version 6 dropped   failed writes rolled back   merge-on-read: all log files compacted
    under the lock   pending mark   metadata table dropped   copies of the archive and of the timeline   switch of the
    properties
    grace time, in which readers that loaded the table earlier finish
    under the lock   old timeline deleted
    metadata table built again, with the index partitions that the new version has

See `timeline.version_change` for the order of the effects and for crashes. Every step can be repeated, and a repeated
command continues a change that crashed. Apache Hudi moves the files of the timeline one after the other, so its readers
may miss commits meanwhile; here readers see the old timeline or the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import SUPPORTED_VERSIONS, moves_timeline, table_layout
from lakehouse.core.metadata.partitions.registry import maintained_names
from lakehouse.core.metadata.place import INFLIGHT_KEY, PARTITIONS_KEY, listed_partitions
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.operations.commit.completion import REBUILD_KEY, rebuild_dropped
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.table import LoadedTable, load_config
from lakehouse.core.operations.services import compaction
from lakehouse.core.operations.services.service import ServiceRequest
from lakehouse.core.operations.undo.rollback import roll_back_expired_writes
from lakehouse.core.operations.version.version_plan import (
    NOTED_PARTITIONS,
    VersionPlan,
    VersionRequest,
    blocking_instants,
    logged_groups,
    plan_version,
    require_plan,
    target_layout,
)
from lakehouse.core.planning.table_version import completion_times, is_compaction, needs_compaction
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.timeline.archive_conversion import convert_archive
from lakehouse.core.timeline.archived_log import ArchivedLog
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.core.timeline.table_properties import PROPERTIES, read_properties, update_properties
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.core.timeline.version_change import (
    Folders,
    abandon_change,
    begin_change,
    copy_timeline,
    delete_source,
    finish_change,
    folders_of,
    switch,
    timeline_files,
)
from lakehouse.core.timeline.version_marks import VersionMark, mark_layout, marks_among
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.partition_rules import PartitionPolicies
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)
#: Attempts to find the table without new commits after the preparation.
_TRIES = 3
#: Maximum number of compactions per attempt: one for each pending plan, and one for the remaining groups.
_COMPACTIONS = 20


def change_version(
    table: LoadedTable, engine: Engine, policies: Policies, request: VersionRequest
) -> VersionPlan | NothingToDo:
    """Change the table to another version, or continue or abandon a change that crashed.

    A change to the present version abandons an unfinished change to another version.

    Raises:
        UserError: The version is not supported, or the other verb changes to it; an action is pending; the table has
            neither the version of the plan nor the new one.
        UnsupportedError: A feature of the table prevents the change; the message names it and the way out.
        RetryableError: A writer is active or commits meanwhile, or a restore is not finished.
    """
    root, source = table.env.storage.root, table.config.layout
    target = target_layout(request.to, current=source, root=root, upgrade=request.upgrade)
    if source == target:
        return _settle(table, policies, request)
    if request.source is not None and str(request.source) != str(source.version):
        raise UserError(
            f"{root} has table version {source.version}, but the plan was made for version {request.source}; look at "
            "the plan again with --dry-run",
            version=str(source.version),
        )
    plan = plan_version(table, target)
    if request.dry_run:
        return plan
    with table_lock(table.env, policies.transaction) as lock:
        _abandon(table, lock)
    table = table.refresh()
    for attempt in range(_TRIES):
        require_plan(table, target)
        table = _prepared(table, engine, policies, target)
        try:
            mark = _changed(table, policies, target, request.confirm)
            break
        except _CommittedMeanwhileError as error:
            if attempt == _TRIES - 1:
                raise
            logger.warning("%s", error.message)
            table = table.refresh()
    logger.info("%s: changed from version %s to %s", root, source.version, target.version)
    folders = folders_of(table.config, target)
    if not folders.are_equal and request.grace_s > 0:
        table.env.clock.sleep(request.grace_s)
    with table_lock(table.env, policies.transaction) as lock:
        delete_source(table.env, folders, mark, lock)
    rebuild_dropped(table.refresh(), policies.transaction)
    return replace(plan, is_done=True)


class _CommittedMeanwhileError(RetryableError):
    """A writer used the table between the preparation and the lock."""


def _settle(table: LoadedTable, policies: Policies, request: VersionRequest) -> NothingToDo:
    """Finish the cleanup of a change to the present version, and abandon an unfinished change to another one."""
    env, version = table.env, table.config.version
    done = f"the table has version {version}"
    if request.dry_run:
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=done)
    with table_lock(env, policies.transaction) as lock:
        abandoned = _abandon(table, lock)
        for folder in _other_folders(table):
            own = VersionMark(version=str(version), is_pending=True)
            if own in marks_among(env.storage.list_names(folder)):
                finish_change(env, folder, own)
                delete_source(env, Folders(source=folder, target=_folder(table)), own, lock)
                done = f"the table has version {version}; the files of the former version were deleted"
    rebuild_dropped(table.refresh(), policies.transaction)
    if abandoned:
        done = f"the table has version {version}; the unfinished change to version {abandoned} was abandoned"
    return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=done)


def _abandon(table: LoadedTable, lock: TableLock) -> str:
    """Remove the mark of an unfinished change, under the lock; return its version, empty if there is none."""
    env, folder, config = table.env, _folder(table), table.config
    own = str(config.version)
    marks = [m for m in marks_among(env.storage.list_names(folder)) if m.is_pending and m.version != own]
    for mark in marks:
        abandon_change(env, folder, mark, lock)
        moved = folders_of(config, mark_layout(mark))
        if not moved.are_equal:
            copies = timeline_files(env, moved.target)
            env.storage.delete_many(f"{moved.target}/{file.name}" for file in copies)
        logger.warning("%s: abandoned the unfinished change to version %s", env.storage.root, mark.version)
    noted = (read_properties(env.storage) or {}).get(NOTED_PARTITIONS)
    if noted:
        update_properties(env, {NOTED_PARTITIONS: None, REBUILD_KEY: noted})
    return marks[0].version if marks else ""


def _prepared(table: LoadedTable, engine: Engine, policies: Policies, target: TableLayout) -> LoadedTable:
    """Roll back failed writes and compact, so that the change has nothing to convert but completed actions."""
    table.store.refuse_during_restore(table.timeline)
    failed = roll_back_expired_writes(table, policies.transaction)
    if failed.alive:
        raise RetryableError(
            f"{table.env.storage.root}: the write {failed.alive[0]} is active; wait for it, then run again",
            instant=failed.alive[0],
        )
    table = table.refresh()
    compacts = needs_compaction(table.config, target)
    pending = blocking_instants(table, compacts=compacts)
    if pending:
        raise UserError(f"{table.env.storage.root}: {pending[0]}, then run again", pending=pending)
    return _compacted(table, engine, policies) if compacts else table


def _compacted(table: LoadedTable, engine: Engine, policies: Policies) -> LoadedTable:
    """Run compactions until no file group has log files in its newest slice."""
    unbounded = replace(
        policies,
        compaction=replace(policies.compaction, strategy="UnBounded", partitions=""),
        partitions=PartitionPolicies(),
    )
    for _ in range(_COMPACTIONS):
        outcome = compaction.run(table, engine, unbounded, ServiceRequest(force=True))
        table = table.refresh()
        if isinstance(outcome, NothingToDo):
            break
    groups = logged_groups(table)
    if groups:
        raise RetryableError(
            f"{table.env.storage.root}: {groups} file groups still have log files after the compaction, because a "
            "writer added them or another plan holds them; stop the writers, complete the plans, then run again",
            groups=groups,
        )
    return table


def _changed(table: LoadedTable, policies: Policies, target: TableLayout, confirm: Callable[[], None]) -> VersionMark:
    """Change the version under the lock, and return the mark of the change."""
    env = table.env
    with table_lock(env, policies.transaction) as lock:
        now = table.refresh()
        confirm()
        _abandon(now, lock)
        folders = folders_of(now.config, target)
        mark = begin_change(env, folders.source, target.version, lock)
        try:
            now = now.refresh()
            _require_quiet(now, policies, target)
            _drop_metadata(now, lock)
            data_tag = env.storage.get_tagged(PROPERTIES)[1]
            now = now.refresh()
            raw = dict(require_plan(now, target).raw)
            noted = raw.pop(NOTED_PARTITIONS, "")
            raw.pop(REBUILD_KEY, None)
            rebuilt = maintained_names(noted.split(","), target)
            if rebuilt:
                raw[REBUILD_KEY] = ",".join(rebuilt)
            names = _copied(now, target, folders, raw, lock)
            confirm()
            switch(env, f"{folders.source}/{mark.name}", names, raw, data_tag, lock)
        except LakehouseError:
            # The reply of the switch may be lost. Without the switch the mark must not refuse the writers.
            with suppress(LakehouseError):
                if load_config(env.storage).layout == now.config.layout:
                    _abandon(now, lock)
            raise
        finish_change(env, folders.source, mark)
    return mark


# parameters: the table, the new layout, both folders, the new properties and the lock
def _copied(
    table: LoadedTable, target: TableLayout, folders: Folders, raw: Mapping[str, str], lock: TableLock
) -> tuple[str, ...]:
    """Copy the timeline and its archive, and return the names of the copied files; empty if the timeline stays."""
    if folders.are_equal:
        return ()
    env, source = table.env, table.config.layout
    files = timeline_files(env, folders.source)
    archive = table.store.archived_timeline
    completions = _completions(table, archive) if isinstance(archive, ArchivedLog) else {}
    changed = parse_table_config(raw, table.config.name, allowed_functions=table.config.allowed_functions)
    convert_archive(archive, TimelineStore(env, changed).archived_timeline, target, completions, lock.check)
    copy_timeline(env, files, (source, target), folders, completions, lock)
    names = tuple(file.name for file in files)
    now = tuple(file.name for file in timeline_files(env, folders.source))
    if now != names or len(timeline_files(env, folders.target)) != len(names):
        raise _CommittedMeanwhileError(
            f"{env.storage.root}: another program changed the timeline during the change of the version, without the "
            "table lock; stop it, then run again"
        )
    return names


def _completions(table: LoadedTable, archive: ArchivedLog) -> dict[Instant, str]:
    """Return the completion times of the completed actions, from the modification times of their files.

    The archive stores the modification times of its actions; old releases of Hudi did not store them.
    """
    files = [f for f in timeline_files(table.env, _folder(table)) if f.instant.is_completed]
    changes = archive.changes()
    modified = {instant: changes.get(instant.key, instant.requested) for instant in archive.instants()}
    modified |= {file.instant: table.store.time_text(file.modified_ms) for file in files}
    merge_on_read = table.config.is_merge_on_read
    compactions = [i.requested for i in modified if is_compaction(i, merge_on_read=merge_on_read)]
    return completion_times(modified, modified, compactions)


def _require_quiet(table: LoadedTable, policies: Policies, target: TableLayout) -> None:
    """Raise _CommittedMeanwhileError if a writer used the table since the preparation."""
    pending = next(iter(table.timeline.where(pending=True)), None)
    active = sorted(active_writes(table.env, policies.transaction))
    is_logged = needs_compaction(table.config, target) and logged_groups(table)
    if pending is None and not active and not is_logged:
        return
    writer = pending.requested if pending else active[0] if active else "a delta commit"
    raise _CommittedMeanwhileError(
        f"{table.env.storage.root}: {writer} was written during the preparation of the version change; stop the "
        "writers, or run again"
    )


def _drop_metadata(table: LoadedTable, lock: TableLock) -> None:
    """Drop the metadata table, and note its partitions in the properties; call under the lock."""
    usable, building = listed_partitions(read_properties(table.env.storage) or {})
    names = sorted({*usable, *building})
    if names:
        lock.check()
        changes = {PARTITIONS_KEY: None, INFLIGHT_KEY: None, NOTED_PARTITIONS: ",".join(names)}
        update_properties(table.env, changes)
        table.metadata.forget()
    if names or table.env.storage.list_dir(".hoodie/metadata")[1]:
        drop_metadata(table.env)


def _folder(table: LoadedTable) -> str:
    return table.config.layout.timeline_folder(table.config.timeline_path)


def _other_folders(table: LoadedTable) -> tuple[str, ...]:
    """Return the timeline folders of all versions; the own folder is the last."""
    layouts = [table_layout(version) for version in SUPPORTED_VERSIONS]
    folders = {layout.timeline_folder("timeline") for layout in layouts if moves_timeline(layout, table.config.layout)}
    return (*sorted(folders), _folder(table))
