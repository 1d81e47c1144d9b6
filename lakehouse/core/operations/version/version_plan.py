"""Plan a change of the table version: its steps, the files that it writes, and features that prevent it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import WRITABLE_VERSIONS, is_newer, moves_timeline, table_layout
from lakehouse.core.metadata.partitions.registry import maintained_names
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.table_version import (
    NewProperties,
    needs_compaction,
    new_properties,
    readers_lost,
)
from lakehouse.core.state.table_config import TableConfig, write_refusal
from lakehouse.core.timeline.version_change import timeline_files
from lakehouse.errors import LakehouseError, UnsupportedError, UserError
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Action, Instant

#: Property of a table without metadata table: the index partitions to build after the change.
NOTED_PARTITIONS = "lakehouse.version.partitions"
_COMMANDS = {
    Action.CLEAN: "lakehouse clean run",
    Action.CLUSTERING: "lakehouse clustering run",
    Action.COMPACTION: "lakehouse compaction run",
    Action.INDEXING: "lakehouse index run",
    Action.LOGCOMPACTION: "lakehouse logcompaction run",
    Action.RESTORE: "lakehouse restore run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest:
    """The parameters of a change.

    Attributes:
        to: The new table version.
        upgrade: Whether the version must not be older than the present one; otherwise it must not be newer.
        dry_run: Return the plan, and write nothing.
        grace_s: Seconds between the switch and the deletion of the old timeline.
        source: The version for which a user saw the plan; None for any version.
        confirm: Called before the pending mark and before the switch. It raises RetryableError if the run may not go
            on, for example because it lost its leases.
    """

    to: int | str
    upgrade: bool
    dry_run: bool = False
    grace_s: int = 0
    source: int | str | None = None
    confirm: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlan(Readable):
    """The plan for a change of the table version, or the report about one that took place.

    Attributes:
        source: The present version.
        target: The new version.
        steps: The steps in their order, as sentences.
        timeline_files: The number of timeline files that are written again; 0 if the timeline stays where it is.
        archived_actions: The number of archived actions that are copied to the archive of the new version.
        compacted_groups: The number of file groups whose log files are compacted first.
        dropped_partitions: The index partitions of the metadata table that is dropped.
        rebuilt_partitions: The index partitions that are built again afterwards.
        failed_writes: The requested times of pending writes and rollbacks, which are rolled back or finished first.
        readers_lost: Engines that read the present version but not the new one.
        blockers: Reasons that prevent the change, as sentences.
        warnings: Effects of the change that do not prevent it, as sentences.
        is_done: Whether the change took place.
    """

    source: int
    target: int
    steps: tuple[str, ...] = ()
    timeline_files: int = 0
    archived_actions: int = 0
    compacted_groups: int = 0
    dropped_partitions: tuple[str, ...] = ()
    rebuilt_partitions: tuple[str, ...] = ()
    failed_writes: tuple[str, ...] = ()
    readers_lost: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_done: bool = False

    def _shown(self) -> Shown:
        verb = "changed" if self.is_done else "plan of a change"
        line = f"{verb} from table version {self.source} to {self.target}: {count_text(len(self.steps), 'step')}"
        facts = {"blockers": self.blockers, "readers lost": self.readers_lost, "warnings": self.warnings}
        return Shown(line, facts, [{"step": step} for step in self.steps])


def target_layout(version: int | str, *, current: TableLayout, root: str, upgrade: bool) -> TableLayout:
    """Return the layout of a version; raise UserError for a version that the verb does not reach from `current`."""
    versions = ", ".join(map(str, WRITABLE_VERSIONS))
    if str(version).strip() not in map(str, WRITABLE_VERSIONS):
        raise UserError(f"table version {version} is not supported; choose one of {versions}", version=str(version))
    layout = table_layout(int(version))
    verb, other = ("upgrade", "downgrade") if upgrade else ("downgrade", "upgrade")
    article = "an" if upgrade else "a"
    if is_newer(current, layout) if upgrade else is_newer(layout, current):
        raise UserError(
            f"{root}: {article} {verb} cannot change table version {current.version} to {layout.version}; use "
            f"`lakehouse table {other} --table {root} --to {layout.version}`",
            version=str(version),
        )
    return layout


def plan_version(table: LoadedTable, target: TableLayout) -> VersionPlan:
    """Return the plan of the change to version `target`; reads the timeline and the file listing."""
    config, root = table.config, table.env.storage.root
    source = config.layout
    usable, building = listed_partitions(config.raw)
    dropped = tuple(sorted({*usable, *building, *_noted(table)}))
    rebuilt = maintained_names(dropped, target)
    properties, blockers = _properties(table, target)
    blockers += blocking_instants(table, compacts=needs_compaction(config, target))
    failed = tuple(i.requested for i in table.timeline.where(pending=True) if is_rolled_back(i))
    groups = logged_groups(table) if needs_compaction(config, target) else 0
    is_moved = moves_timeline(source, target)
    moved = len(timeline_files(table.env, _folder(table))) if is_moved else 0
    archived = len(table.store.archived_timeline.instants()) if is_moved else 0
    steps = [
        f"drop the metadata table with {', '.join(dropped)}" if dropped else "",
        f"roll back failed writes: {', '.join(failed)}" if failed else "",
        f"compact {count_text(groups, 'file group')} with log files" if groups else "",
        f"copy {count_text(archived, 'archived action')} to the archive of version {target.version}"
        if archived
        else "",
        f"copy {count_text(moved, 'timeline file')} to the names and encodings of version {target.version}"
        if moved
        else "",
        f"switch hoodie.properties of {root} to version {target.version}",
        f"delete {count_text(moved, 'timeline file')} of version {source.version}" if moved else "",
        f"build the metadata table with {', '.join(rebuilt)}" if rebuilt else "",
    ]
    return VersionPlan(
        source=source.version,
        target=target.version,
        steps=tuple(step for step in steps if step),
        timeline_files=moved,
        archived_actions=archived,
        compacted_groups=groups,
        dropped_partitions=dropped,
        rebuilt_partitions=rebuilt,
        failed_writes=failed,
        readers_lost=readers_lost(source, target),
        blockers=tuple(blockers),
        warnings=_warnings(table, target, properties, dropped),
    )


def require_plan(table: LoadedTable, target: TableLayout) -> NewProperties:
    """Return the new properties; raise UnsupportedError for a feature that prevents the change."""
    properties, blockers = _properties(table, target)
    if properties is None:
        raise UnsupportedError(f"{table.env.storage.root}: {blockers[0]}", blockers=blockers)
    return properties


def logged_groups(table: LoadedTable) -> int:
    """Return the number of file groups whose newest slice has log files."""
    return int((load_slices(table).log_counts > 0).sum())


def is_rolled_back(instant: Instant) -> bool:
    """Return whether a pending instant is a write or a rollback, which the rollback of failed writes removes."""
    return instant.action in (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.ROLLBACK)


def blocking_instants(table: LoadedTable, *, compacts: bool = False) -> list[str]:
    """Return a sentence for each pending action that has to be finished first; `compacts` runs pending compactions."""
    root = table.env.storage.root
    return [
        f"the {instant.action} {instant.requested} is pending; finish it with `{_COMMANDS[instant.action]} --table "
        f"{root}`"
        for instant in table.timeline.where(pending=True, action=frozenset(_COMMANDS))
        if not (compacts and instant.action is Action.COMPACTION)
    ]


def _properties(table: LoadedTable, target: TableLayout) -> tuple[NewProperties | None, list[str]]:
    """Return the new properties, or None and the reason why there are none."""
    refusal = write_refusal(_without_metadata(table))
    if refusal is not None:
        return None, [refusal]
    if not table.config.populate_meta_fields:
        return None, ["hoodie.populate.meta.fields=false is read only here; change the version with Apache Hudi"]
    try:
        return new_properties(table.config, target), []
    except LakehouseError as error:
        return None, [error.message]


def _without_metadata(table: LoadedTable) -> TableConfig:
    """Return the configuration without metadata table: the change drops it, so it prevents nothing."""
    return replace(table.config, metadata_partitions=())


def _noted(table: LoadedTable) -> tuple[str, ...]:
    """Return the partitions of a metadata table that an earlier run of the change dropped."""
    return tuple(name for name in table.config.raw.get(NOTED_PARTITIONS, "").split(",") if name)


def _folder(table: LoadedTable) -> str:
    return table.config.layout.timeline_folder(table.config.timeline_path)


def _warnings(
    table: LoadedTable, target: TableLayout, properties: NewProperties | None, dropped: tuple[str, ...]
) -> tuple[str, ...]:
    config, source = table.config, table.config.layout
    is_moved, is_older = moves_timeline(source, target), is_newer(source, target)
    warnings = list(properties.warnings) if properties is not None else []
    if is_moved:
        warnings.append(
            "other writers that do not use the table lock must be stopped; Apache Hudi must use the same lock provider"
        )
        warnings.append(
            "incremental readers should read up to the newest commit first: the times by which they continue "
            + ("become request times" if is_older else "become completion times")
        )
    if is_moved and is_older and config.is_merge_on_read:
        warnings.append(
            "Hudi 0.15, Trino and Athena read wrong rows of merge-on-read file groups as of instants before the "
            "downgrade, because the older log files keep their names; lakehouse and Hudi 1.x read them right"
        )
    lost = [name for name in dropped if name not in maintained_names(dropped, target)]
    if lost:
        warnings.append(
            f"the indexes {', '.join(lost)} are dropped, because writers of version {target.version} do not maintain "
            "them"
        )
    return tuple(warnings)
