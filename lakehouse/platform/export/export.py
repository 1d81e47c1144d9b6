"""Export a table to one format: plan the next version of its view, and commit it.

A run that loses the race for a version loads the view again and continues from the version of the winner. So two runs
at the same time write each change once, and a run that finds no difference writes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.files.base.base_reader import MissingFileError
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.exported_views import record_exported
from lakehouse.errors import RetryableError
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.export.columns import ViewColumns, promotes, view_columns
from lakehouse.platform.export.difference import FileDifference, all_files, difference_of_listing, difference_of_writes
from lakehouse.platform.export.facts import FileFacts, MixedPartitionError, read_facts
from lakehouse.platform.export.mark import mark_of, new_writes
from lakehouse.platform.export.view import MIXED, READ_OPTIMIZED, SNAPSHOT, ViewChange, ViewFormat, ViewState
from lakehouse.spec.options.export import ExportPolicy

logger = logging.getLogger(__name__)

_TRIES = 10
_CHANGED = "another program changed the view"
#: Writes without effect on base files after which a version records that the view contains them.
_MOST_EMPTY_WRITES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan(Readable):
    """The next version of a view.

    Attributes:
        format: The format of the view.
        instant: The newest write of the table that the version contains.
        version: Number of the newest version of the view; -1 without a view.
        added, removed: Number of files to add and to remove.
        compared: Whether the view is compared with a listing of the whole table, and why.
        read_optimized: Whether the view shows base files only, because the table is merge-on-read.
    """

    format: str
    instant: str
    version: int
    added: int = 0
    removed: int = 0
    compared: str = ""
    read_optimized: bool = False

    def _shown(self) -> Shown:
        facts = {"instant": self.instant, "added": self.added, "removed": self.removed, "compared": self.compared}
        changes = f"{count_text(self.added, 'file')} added, {count_text(self.removed, 'file')} removed"
        return Shown(f"{self.format} view: {changes}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedView(Readable):
    """A version of a view that an export committed. `warnings` are sentences for people."""

    format: str
    instant: str
    version: int
    added: int
    removed: int
    added_bytes: int = 0
    added_rows: int = 0
    compared: str = ""
    warnings: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        changes = f"{count_text(self.added, 'file')} added, {count_text(self.removed, 'file')} removed"
        facts = {"instant": self.instant, "version": self.version, "warnings": self.warnings}
        return Shown(f"{self.format} view, version {self.version}: {changes}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The planned change of a view, before the footers of its added files are read."""

    state: ViewState
    columns: ViewColumns
    difference: FileDifference
    compared: str = ""
    replaces_all: bool = False


def export_due(table: LoadedTable, view: ViewFormat) -> str:
    """Return why the view of a format has to be written, as a sentence; empty if it is up to date."""
    state = view.load(table.env)
    if not len(table.timeline.writes()):
        return f"all writes in the {view.name} view were undone" if state.mark and state.mark.instant else ""
    if not state.exists:
        return f"there is no {view.name} view yet"
    lacking = None if state.mark is None else new_writes(state.mark, table.timeline)
    if lacking is None:
        return f"the {view.name} view has to be compared with the table"
    if not lacking:
        return ""
    if len(lacking) < _MOST_EMPTY_WRITES and not _has_effect(table, lacking):
        return ""
    return f"{count_text(len(lacking), 'write')} since the last export to {view.name}"


def plan_export(
    table: LoadedTable, view: ViewFormat, policy: ExportPolicy, *, force: bool = False
) -> ExportPlan | NothingToDo:
    """Return the plan of an export; nothing is written. With `force` the whole view is written again."""
    step = _plan(table, view, policy, force=force)
    if isinstance(step, NothingToDo):
        return step
    return ExportPlan(
        format=view.name,
        instant=mark_of(table.timeline).instant,
        version=step.state.version,
        added=step.difference.added.num_rows,
        removed=len(step.difference.removed),
        compared=step.compared,
        read_optimized=table.config.is_merge_on_read,
    )


def run_export(
    table: LoadedTable, view: ViewFormat, policy: ExportPolicy, *, force: bool = False
) -> ExportedView | NothingToDo:
    """Bring the view of a format to the newest state of the table, in one version.

    Raises:
        UnsupportedError: The format cannot represent a column.
        RetryableError: Other exporters keep writing the view.
    """
    for _ in range(_TRIES):
        state = view.load(table.env)
        view.finish(table.env, state, retained=policy.retained_versions)
        step = _plan(table, view, policy, force=force, state=state)
        if isinstance(step, NothingToDo):
            return step
        try:
            exported = _commit(table, view, policy, step)
        except MissingFileError:
            # A write replaced the file after the table was loaded, and a clean removed it.
            now = table.reload()
            if now.timeline == table.timeline:
                raise
            table = now
            continue
        if exported is not None:
            logger.info("%s: %r", table.env.storage.root, exported)
            return exported
        table = table.reload()
    raise RetryableError(f"{table.env.storage.root}: other exports keep writing the {view.name} view; run again")


def _plan(
    table: LoadedTable, view: ViewFormat, policy: ExportPolicy, *, force: bool, state: ViewState | None = None
) -> _Step | NothingToDo:
    table.store.refuse_during_restore(table.timeline)
    state = view.load(table.env) if state is None else state
    if not len(table.timeline.writes()):
        return _plan_empty(table, view, state)
    partitioned = policy.partitioned and (force or MIXED not in state.properties)
    columns = view.columns(view_columns(table, partitioned=partitioned), table.env.storage.root)
    reason = _why_all(state, columns, force=force)
    if reason:
        return _all(table, view, state, columns, reason)
    lacking = None if state.mark is None else new_writes(state.mark, table.timeline)
    if lacking is not None:
        same = state.columns == columns
        if same and (not lacking or (len(lacking) < _MOST_EMPTY_WRITES and not _has_effect(table, lacking))):
            reason = f"the {view.name} view contains all writes" if not lacking else _only_logs(view, lacking)
            return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)
        difference = difference_of_writes(table, lacking, partial(view.paths, table.env, state))
        return _Step(state=state, columns=columns, difference=difference)
    reason = "writes were undone, or archived before they were exported"
    difference = difference_of_listing(table, view.paths(table.env, state))
    if difference.is_empty and state.columns == columns and state.mark == mark_of(table.timeline):
        reason = f"the {view.name} view contains all writes"
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)
    return _Step(state=state, columns=columns, difference=difference, compared=reason)


def _plan_empty(table: LoadedTable, view: ViewFormat, state: ViewState) -> _Step | NothingToDo:
    """Return the change after which the view has no files: all writes of the table were undone."""
    if not state.exists or state.columns is None:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason="the table has no writes")
    if state.mark is not None and not state.mark.instant:
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=f"the table and the {view.name} view are empty")
    difference = difference_of_listing(table, view.paths(table.env, state))
    return _Step(state=state, columns=state.columns, difference=difference, compared="all writes were undone")


def _all(table: LoadedTable, view: ViewFormat, state: ViewState, columns: ViewColumns, reason: str) -> _Step:
    difference = all_files(table, view.paths(table.env, state))
    return _Step(state=state, columns=columns, difference=difference, compared=reason, replaces_all=True)


def _why_all(state: ViewState, columns: ViewColumns, *, force: bool) -> str:
    """Return why all files of a view are written again; empty if they are not."""
    if not state.exists:
        return "there is no view yet"
    if force or state.unusable:
        return state.unusable or "the export is forced"
    before = state.columns
    if state.mark is None or before is None:
        return _CHANGED
    if before.partition_by != columns.partition_by:
        return "the partition columns of the view change"
    if columns.is_evolved and before != columns:
        # Files in the view may have other names for the columns.
        return "the columns of the table changed"
    for field in columns.schema:
        if field.name not in before.schema.names:
            continue
        earlier = before.kind(field.name)
        is_partition = field.name in columns.partition_by
        if earlier != field.type and (is_partition or not promotes(earlier, field.type)):
            return f"the type of column {field.name!r} changed from {earlier} to {field.type}"
    return ""


def _has_effect(table: LoadedTable, writes: tuple[Instant, ...]) -> bool:
    """Return whether writes changed base files; writes to logs of a merge-on-read table do not."""
    if not table.config.is_merge_on_read:
        return True
    paths = table.store.files(writes).column("path").to_pylist()
    if any(path.endswith(".parquet") for path in paths):
        return True
    return any(metadata.replaced for _, metadata in table.store.summaries(writes))


def _only_logs(view: ViewFormat, writes: tuple[Instant, ...]) -> str:
    return (
        f"{count_text(len(writes), 'write')} since the last export changed log files only; the {view.name} view shows "
        "base files, so it changes with the next compaction"
    )


def _commit(table: LoadedTable, view: ViewFormat, policy: ExportPolicy, step: _Step) -> ExportedView | None:
    """Read the footers of added files and commit; None if another exporter committed first."""
    mark = mark_of(table.timeline)
    if not step.state.exists:
        # From now on, cleans keep the files of the first version.
        record_exported(table.env, view.name, mark.anchor)
    warnings: tuple[str, ...] = ()
    mixed: tuple[tuple[str, str], ...] = ()
    try:
        facts = _facts(table, step)
        done = view.commit(table.env, step.state, _change(table, policy, step, facts, mixed))
    except MixedPartitionError as error:
        # Partition values would be wrong for some rows, so the view has no partitions from now on.
        columns = replace(step.columns, partition_by=())
        mixed = ((MIXED, error.message),)
        warnings = (f"the {view.name} view has no partitions: {error.message}",)
        step = _all(table, view, step.state, columns, "the partition columns of the view change")
        facts = _facts(table, step)
        done = view.commit(table.env, step.state, _change(table, policy, step, facts, mixed))
    if not done:
        return None
    record_exported(table.env, view.name, mark.anchor)
    if table.config.is_merge_on_read:
        warnings += (
            f"the {view.name} view shows base files only (read-optimized), because the table is merge-on-read",
        )
    if step.compared == _CHANGED:
        warnings += (f"another program changed the {view.name} view; the export made it equal to the table again",)
    return ExportedView(
        format=view.name,
        instant=mark.instant,
        version=step.state.next_version,
        added=len(facts),
        removed=len(step.difference.removed),
        added_bytes=sum(file.size_bytes for file in facts),
        added_rows=sum(file.rows for file in facts),
        compared=step.compared,
        warnings=warnings,
    )


def _facts(table: LoadedTable, step: _Step) -> tuple[FileFacts, ...]:
    difference = step.difference
    return read_facts(table.env.storage, difference.added_paths, difference.added_sizes, step.columns)


def _change(
    table: LoadedTable,
    policy: ExportPolicy,
    step: _Step,
    facts: tuple[FileFacts, ...],
    properties: tuple[tuple[str, str], ...],
) -> ViewChange:
    return ViewChange(
        mark=mark_of(table.timeline),
        columns=step.columns,
        added=facts,
        removed=step.difference.removed,
        replaces_all=step.replaces_all,
        view_of=READ_OPTIMIZED if table.config.is_merge_on_read else SNAPSHOT,
        retained=policy.retained_versions,
        properties=properties,
    )
