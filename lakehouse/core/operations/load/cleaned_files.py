"""Reads of the past that would miss files: a clean took them, so they are refused and not answered wrongly.

A clean says which files it removed, and a pending one which it may be removing, so what a reader of the past needs is
known for sure: the slices as they were, made of the files that are there and of those that are gone. Files that a
savepoint or a pin kept are there, whatever was retained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.load.table import LoadedTable, archived_writes, placed
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import DataFile, VisibleTimeline, first_write, latest_slices, replacements
from lakehouse.errors import UserError
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State

_READERS = 8


def cleaned_files(table: LoadedTable, after: str) -> tuple[DataFile, ...]:
    """Return the base and log files that cleans planned later than `after` took away, or are about to.

    An earlier clean took nothing that a view of this time needs: it left the newest slices of its own time.
    """
    cleans = [clean for clean in table.timeline.where(action=Action.CLEAN) if clean.requested > after]
    with ThreadPoolExecutor(_READERS) as pool:
        contents = list(pool.map(lambda clean: _content(table, clean), cleans))
    # What is archived is older than the writes that are on the timeline.
    reaches_back = after < first_write(table.timeline)
    old = table.store.archived_actions(Action.CLEAN, after) if reaches_back else []
    contents += [(held.plan, held.metadata) for held in old]
    paths: dict[str, None] = {}
    emptied: set[str] = set()
    for plan, metadata in contents:
        if plan:
            planned = decode_clean_plan(plan, base_path=table.env.storage.root)
            paths |= dict.fromkeys(planned.paths)
            emptied.update(planned.partitions_to_delete)
        elif metadata:
            paths |= dict.fromkeys(decode_clean_metadata(metadata).deleted)
    if emptied:
        # Hudi deletes the whole directory, with files that neither plan nor metadata name.
        named = table.store.commits(table.timeline.writes())
        if reaches_back:
            named += table.store.archived_commits(archived_writes(table).instants)
        paths |= {stat.path: None for _, commit in named for stat in commit.stats if stat.partition in emptied}
    return tuple(file for path in paths if (file := _data_file(path)) is not None)


def require_uncleaned(
    table: LoadedTable,
    slices: Iterable[FileSlice],
    visible: VisibleTimeline,
    at: str,
    *,
    keep: Callable[[str], bool] | None = None,
) -> None:
    """Raise UserError if the newest slices seen at `at` are not all there any more; `slices` are those found.

    Partitions that `keep` says False of are not looked at.
    """
    cleaned = [file for file in cleaned_files(table, at) if keep is None or not file.partition or keep(file.partition)]
    if not cleaned:
        return
    found = [file for file_slice in slices for file in _files(file_slice)]
    there = {file.path for file in found}
    gone = [file for file in cleaned if file.path not in there]
    files = [*found, *gone]
    whole = latest_slices(files, _with_archived(table, files, visible), layout=table.config.layout)
    missing = {file.path for file in gone}.intersection(path for s in whole for path in slice_paths(s))
    if missing:
        raise UserError(
            f"{table.env.storage.root} cannot be read as of {at} any more: cleans removed {len(missing)} of its "
            f"files, such as {min(missing)}. {_way_out(table, at)}",
            as_of=at,
            missing=sorted(missing),
        )


def _with_archived(table: LoadedTable, files: Sequence[DataFile], visible: VisibleTimeline) -> VisibleTimeline:
    """Return what is seen of files that are gone: groups that archived writes replaced are not."""
    replacing = archived_writes(table).where(action=Action.REPLACECOMMIT)
    commits = table.store.commits(instant for instant in replacing if visible.shows(instant.requested))
    hidden = {(replaced.partition, replaced.file_id): replaced.instant for replaced in replacements(commits)}
    return replace(placed(table, files, visible), replaced={**hidden, **visible.replaced})


def _way_out(table: LoadedTable, at: str) -> str:
    retained = [earliest for clean in _completed(table) if (earliest := decode_clean_metadata(clean).earliest) > at]
    kept = sorted(table.timeline.savepoints())
    ways = [f"read it as of {max(retained)} or later"] if retained else ["read it as of a later time"]
    ways += [f"as of a savepoint ({', '.join(kept)})"] if kept else []
    return f"{', or '.join(ways).capitalize()}; hoodie.clean.commits.retained says how much is kept from now on"


def _completed(table: LoadedTable) -> list[bytes]:
    cleans = table.timeline.where(action=Action.CLEAN, state=State.COMPLETED)
    return [data for clean in cleans if (data := table.store.read(clean, State.COMPLETED))]


def _content(table: LoadedTable, clean: Instant) -> tuple[bytes | None, bytes | None]:
    """Return the plan of a clean, or if that is gone what it did."""
    plan = table.store.read(clean, State.REQUESTED)
    return plan, table.store.read(clean, State.COMPLETED) if clean.is_completed and not plan else None


def _files(file_slice: FileSlice) -> Iterable[DataFile]:
    if file_slice.base is not None:
        yield file_slice.base
    yield from file_slice.logs


def _data_file(path: str) -> DataFile | None:
    partition, _, name = path.rpartition("/")
    return parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
