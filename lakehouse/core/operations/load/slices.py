"""Build file slices from a listing and the timeline (TL-6)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.memory import release_unused
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import supported_data_files
from lakehouse.core.operations.load.metadata import known_files, levels
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.partitions import PartitionFilter
from lakehouse.core.state.columnar_view import (
    NAMED,
    SliceGroups,
    all_columns,
    duplicate_instants,
    unplaced_instants,
)
from lakehouse.core.state.data_files import files_table, members, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import (
    DataFile,
    Group,
    VisibleTimeline,
    replacements,
    unplaced,
    visible_timeline,
)
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Timeline

#: For more partitions than this, the cached slices of the whole table are filtered, if the metadata table lists it.
_MANY_PARTITIONS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The newest slices of some partitions, and all listed files.

    `files` has the columns of a listing (see `core.state.data_files`); `from_metadata` is whether they come
    from the metadata table.

    `partitions`, `keep`, `as_of` and `completed_up_to` are the arguments of `load_listing`.
    """

    slices: FileSlices
    files: pa.Table
    visible: VisibleTimeline
    partitions: tuple[str, ...] | None = None
    keep: Callable[[str], bool] | None = None
    as_of: str | None = None
    completed_up_to: str | None = None
    from_metadata: bool = False

    def of_partitions(self, partitions: Sequence[str]) -> Listing:
        """Return the part of a whole-table listing for some partitions."""
        wanted = pa.array(partitions, pa.string())
        return replace(
            self,
            slices=self.slices.filter(members(self.slices.partitions, wanted)),
            files=self.files.filter(members(one_array(self.files.column("partition")), wanted)),
            partitions=tuple(partitions),
        )

    def covered(self, partitions: Iterable[str]) -> frozenset[str]:
        """Return the given partitions that were listed."""
        wanted = None if self.partitions is None else frozenset(self.partitions)
        listed = [partition for partition in partitions if wanted is None or partition in wanted]
        if self.keep is None:
            return frozenset(listed)
        if isinstance(self.keep, PartitionFilter):
            flags = self.keep.select(pa.array(listed, pa.string())).tolist()
            return frozenset(partition for partition, is_selected in zip(listed, flags, strict=True) if is_selected)
        keep = cache(self.keep)
        if wanted is not None:
            return frozenset(partition for partition in listed if not partition or keep(partition))
        return frozenset(partition for partition in listed if all(map(keep, levels(partition))))


# parameters: the independent limits of a listing
def load_listing(
    table: LoadedTable,
    partitions: Sequence[str] | None = None,
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
    keep: Callable[[str], bool] | None = None,
    on_storage: bool = False,
) -> Listing:
    """List partitions and return their newest visible slices.

    Args:
        table: The loaded table.
        partitions: Partition paths; None lists the whole table.
        as_of: Only writes requested up to this time are visible.
        completed_up_to: Only writes completed up to this time are visible.
        keep: Returns whether a directory is listed, see `list_data_files`.
        on_storage: List storage, even if the table has a metadata table.
    """
    if partitions is not None and len(partitions) > _MANY_PARTITIONS and keep is None and not on_storage:
        whole = load_listing(table, as_of=as_of, completed_up_to=completed_up_to)
        if whole.from_metadata:
            return whole.of_partitions(partitions)
    named = known_files(table, partitions, keep, on_storage=on_storage)

    def viewed() -> tuple[FileSlices, VisibleTimeline]:
        visible = load_visible(table, as_of=as_of, completed_up_to=completed_up_to)
        files = supported_data_files(table, named.files)
        release_unused(after=files)
        groups = groups_of(table, files, visible)
        return groups.latest(), groups.visible

    slices, visible = (
        viewed() if named.identity is None else _kept(table, (named.identity, as_of, completed_up_to), viewed)
    )
    return Listing(
        slices=slices,
        files=named.files,
        from_metadata=named.from_metadata,
        visible=visible,
        partitions=None if partitions is None else tuple(partitions),
        keep=keep,
        as_of=as_of,
        completed_up_to=completed_up_to,
    )


_View = tuple[FileSlices, VisibleTimeline]


def _kept(table: LoadedTable, key: Hashable, view: Callable[[], _View]) -> _View:
    """Return the slices of the whole table. They are cached while neither the timeline nor the listing changes."""

    def made() -> tuple[tuple[Timeline, _View], int]:
        value = view()
        # Release memory to the system: Arrow's allocator would keep the memory that the view of a large table used.
        release_unused(after=value[0].files)
        return (table.timeline, value), value[0].files.nbytes

    timeline, cached = table.metadata.cache.get(("slices", key), made)
    if timeline is table.timeline or timeline == table.timeline:
        return cached
    current, size = made()
    table.metadata.cache.put(("slices", key), current, size)
    return current[1]


def load_slices(
    table: LoadedTable,
    partitions: Sequence[str] | None = None,
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
    keep: Callable[[str], bool] | None = None,
) -> FileSlices:
    """Return the newest visible slices of partitions, see `load_listing`."""
    return load_listing(table, partitions, as_of=as_of, completed_up_to=completed_up_to, keep=keep).slices


def load_all_slices(
    table: LoadedTable, visible: VisibleTimeline, partitions: Sequence[str] | None = None
) -> SliceGroups:
    """List partitions (None: all), and return every slice of each group, newest first, including replaced groups."""
    return groups_of(table, supported_data_files(table, known_files(table, partitions).files), visible)


def groups_of(table: LoadedTable, files: pa.Table, visible: VisibleTimeline) -> SliceGroups:
    """Return every slice of the given data files, newest first, including replaced groups. Change logs are skipped.

    Also reads the completion times of archived instants if they decide to which slice a log file belongs.
    """
    missing = unplaced_instants(files, visible, layout=table.config.layout) - visible.archived.keys()
    visible = _with_completions(table, missing, visible)
    named = _committed_names(table, files, visible)
    return all_columns(files, visible, layout=table.config.layout, named=named)


def slices_of(
    table: LoadedTable, files: Sequence[DataFile], visible: VisibleTimeline
) -> dict[Group, tuple[FileSlice, ...]]:
    """Return the result of `groups_of` as objects by group; use it for few files."""
    return groups_of(table, files_table(files), visible).by_group()


def load_visible(
    table: LoadedTable, *, as_of: str | None = None, completed_up_to: str | None = None, completions: bool = False
) -> VisibleTimeline:
    """Return the timeline that is visible to a query with these bounds; reads the metadata of replacecommits.

    With `completions` it also reads the completion times of all archived writes (see `with_archived_completions`).
    """
    replaced = replacements(table.store.summaries(table.timeline.writes().where(action=Action.REPLACECOMMIT)))
    visible = visible_timeline(table.timeline, replaced, as_of=as_of, completed_up_to=completed_up_to)
    if not completions:
        return visible
    return replace(visible, archived={instant.requested: instant.completion for instant in archived_writes(table)})


def with_archived_completions(
    table: LoadedTable, files: Iterable[DataFile], visible: VisibleTimeline
) -> VisibleTimeline:
    """Add to `visible` the completion times of archived instants that decide to which slice a log file belongs."""
    missing = unplaced(files, visible, layout=table.config.layout) - visible.archived.keys()
    return _with_completions(table, missing, visible)


def _with_completions(table: LoadedTable, missing: frozenset[str], visible: VisibleTimeline) -> VisibleTimeline:
    if not missing:
        return visible
    archived = archived_writes(table, requested_from=min(missing), requested_up_to=max(missing))
    return replace(visible, archived={instant.requested: instant.completion for instant in archived})


def _committed_names(table: LoadedTable, files: pa.Table, visible: VisibleTimeline) -> pa.Table:
    """Return the file names in commits, for instants at which several attempts of a task left files."""
    several = sorted(duplicate_instants(files, layout=table.config.layout))
    instants = [instant for requested in several if (instant := visible.instants.get(requested)) is not None]
    old = [requested for requested in several if requested not in visible.instants and visible.shows(requested)]
    if old:
        archived = archived_writes(table, requested_from=old[0], requested_up_to=old[-1])
        instants += [instant for instant in archived if instant.requested in old]
    # A task that rolled over to another file has one stat for each of its files.
    written = table.store.files(instants)
    names = pc.replace_substring_regex(written.column("path"), "^.*/", "")
    tables = [pa.table([written["partition"], written["file_id"], written["instant"], names], schema=NAMED)]
    # Logs that are named after a bucket resize belong to the commits of other writes. In a version 6 file group without
    # base file, so do all logs except the first.
    shared = [i.requested for i in instants if table.config.is_upgraded or i.action is Action.REPLACECOMMIT]
    if shared:
        is_shared = pc.is_in(files["instant"], value_set=pa.array(shared, pa.string()))
        logs = files.filter(pc.and_(files["is_log"], is_shared))
        tables.append(logs.select(NAMED.names).cast(NAMED))
    return pa.concat_tables(tables)
