"""Find instants that occur in data file names but on no timeline: leftovers of failed writes (TL-6.2).

    not older than the active timeline            left over; hidden until the archive passes its time
    older, and the archive begins before it       left over; readers that list storage show its files
    older, and a rollback or restore undid it     left over; readers that list storage show its files
    older than the archive                        undecided: its part of the archive may have been deleted

An archive that Hudi converted may lack actions, because a downgrade to table version 6 drops some. So for a table that
once had version 6, an instant that is missing in the archive may still have been committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.format.timeline.rollback import decode_rollback_target, decode_undone_instants
from lakehouse.core.layout.registry import has_completion_times
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.data_files import file_paths, members
from lakehouse.core.state.file_system_view import VisibleTimeline, first_write
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State

_INITIAL_VERSION = "hoodie.table.initial.version"
#: The archive of layout 1; an upgrade leaves it behind.
_OLD_ARCHIVE = ".hoodie/archived"
_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedInstants:
    """Instants that are neither on the active timeline nor archived.

    Attributes:
        hidden: Leftover instants whose files no reader shows.
        shown: Leftover instants whose files are shown by readers that list storage.
        undecided: Instants that are older than the archive, so that it is unknown whether they were committed. Readers
            show their files.
    """

    hidden: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    undecided: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """Visible data files of committed instants, and the paths of omitted leftover files and of undecided files."""

    files: pa.Table
    left_out: tuple[str, ...]
    undecided: tuple[str, ...]


def unnamed_instants(table: LoadedTable, instants: Iterable[str]) -> UnnamedInstants:
    """Return the instants from names of data files that are on no timeline.

    List the files before the timeline of `table` is loaded: a write is on the timeline before it creates files. The
    archive is read only if an instant is not on the active timeline.
    """
    missing = set(instants) - {instant.requested for instant in table.timeline}
    if not missing:
        return UnnamedInstants()
    archived = archived_writes(table, requested_from=min(missing), requested_up_to=max(missing))
    missing -= {instant.requested for instant in archived}
    boundary = first_write(table.timeline)
    hidden = {requested for requested in missing if requested >= boundary}
    old = missing - hidden
    if not old:
        return UnnamedInstants(hidden=frozenset(hidden))
    complete_from = _archive_is_complete_from(table)
    shown = {requested for requested in old if complete_from is not None and requested >= complete_from}
    # A plan may be executed and completed after its rollback; a write cannot.
    undone_writes = {time for time, action in undone(table) | _undone_by_archived(table) if action in WRITE_ACTIONS}
    shown |= old & undone_writes
    return UnnamedInstants(hidden=frozenset(hidden), shown=frozenset(shown), undecided=frozenset(old - shown))


def undone(table: LoadedTable) -> set[tuple[str, str]]:
    """Return the instants that the rollbacks and restores on the active timeline undid, with their actions."""
    pairs = set[tuple[str, str]]()
    for instant in table.timeline.where(action=Action.ROLLBACK):
        data = table.store.read(instant, State.REQUESTED)
        if data:
            pairs.add(decode_rollback_target(data))
    for instant in table.timeline.where(action=Action.RESTORE):
        data = table.store.read(replace(instant, state=State.REQUESTED), State.REQUESTED)
        if data:
            pairs.update(decode_restore_plan(data).instants)
    return pairs


def named_files(
    table: LoadedTable, files: pa.Table, visible: VisibleTimeline, *, copied: Collection[str] = ()
) -> NamedFiles:
    """Return the data files of completed instants without leftover files.

    Leftover files are files of instants that were never committed, and base files that their commit does not list, such
    as files of a stale clustering executor. A file stays if it is unknown whether it was committed. `copied` are names
    of log files that completed writes named after a pending instant.
    """
    times = pc.unique(files.column("instant")).to_pylist()
    shown = [requested for requested in times if visible.shows(requested)]
    unnamed = unnamed_instants(table, shown)
    is_shown = members(files.column("instant"), pa.array(shown, pa.string()))
    is_shown = pc.or_(is_shown, members(files.column("name"), pa.array(sorted(copied), pa.string())))
    # Log files that are named after a pending compaction contain blocks of completed writes; see `file_system_view`.
    compacting = members(files.column("instant"), pa.array(sorted(visible.compacting), pa.string()))
    files = files.filter(pc.or_(is_shown, pc.and_(compacting, files.column("is_log"))))
    is_left = members(files.column("instant"), pa.array(sorted(unnamed.shown | unnamed.hidden), pa.string()))
    is_left = pc.or_(is_left, _is_unlisted(table, files, unnamed))
    is_open = members(files.column("instant"), pa.array(sorted(unnamed.undecided), pa.string()))
    return NamedFiles(
        files=files.filter(pc.invert(is_left)),
        left_out=tuple(file_paths(files.filter(is_left)).to_pylist()),
        undecided=tuple(file_paths(files.filter(is_open)).to_pylist()),
    )


def has_old_log_names(table: LoadedTable) -> bool:
    """Return whether the table had version 6 once: names of its log files may contain the instant of another write."""
    version = table.config.raw.get(_INITIAL_VERSION, "")
    return not has_completion_times(version) or bool(table.env.storage.list_names(_OLD_ARCHIVE))


def _archive_is_complete_from(table: LoadedTable) -> str | None:
    """Return the archived write from which on the archive is complete, or None if the archive may lack writes."""
    if not table.config.layout.has_completion_times:
        return None
    first = next(iter(table.store.archived()), None)
    return None if first is None or has_old_log_names(table) else first.requested


def _undone_by_archived(table: LoadedTable) -> set[tuple[str, str]]:
    reports = [action.metadata for action in table.store.archived_actions(Action.ROLLBACK, "")]
    return {pair for data in reports if data for pair in decode_undone_instants(data).items()}


def _is_unlisted(table: LoadedTable, files: pa.Table, unnamed: UnnamedInstants) -> pa.ChunkedArray:
    """Return for each file whether it is a base file that is missing in the commit of its instant."""
    bases = files.filter(pc.invert(files.column("is_log")))
    times = set(pc.unique(bases.column("instant")).to_pylist()) - unnamed.shown - unnamed.hidden - unnamed.undecided
    read, listed = set[str](), [pa.array(sorted(savepointed_paths(table)), pa.string())]
    for instant, paths in _listed(table, times):
        read.add(instant)
        listed.append(paths)
    is_read = members(files.column("instant"), pa.array(sorted(read), pa.string()))
    is_listed = members(file_paths(files), pa.concat_arrays(listed))
    return pc.and_(pc.and_not(is_read, is_listed), pc.invert(files.column("is_log")))


def _listed(table: LoadedTable, times: set[str]) -> Iterator[tuple[str, pa.Array]]:
    """Yield each completed write with readable metadata, and the paths of the files in its metadata."""
    for instant in table.timeline.writes():
        if instant.requested in times:
            yield instant.requested, table.store.files([instant]).column("path").combine_chunks()
    old: list[Instant] = []
    if times:
        archived = archived_writes(table, requested_from=min(times), requested_up_to=max(times))
        old = [instant for instant in archived if instant.requested in times]
    for start in range(0, len(old), _BATCH):
        for instant, metadata in table.store.archived_commits(old[start : start + _BATCH]):
            yield instant.requested, pa.array([stat.path for stat in metadata.stats], pa.string())
