"""Refuse reads of an earlier time (time travel) if a clean removed files that they need.

A completed clean lists the files that it removed, and a pending clean the files that it may be removing. With these and
the listed files, the slices of the earlier time are rebuilt. If a slice contains a removed file, the read is refused
instead of returning fewer rows. Files that a savepoint or a pin keeps are still listed, so they are never missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.slices import with_archived_completions
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import DataFile, VisibleTimeline, first_write, latest_slices, replacements
from lakehouse.errors import CleanedHistoryError
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State

_READERS = 8


def cleaned_files(table: LoadedTable, after: str) -> tuple[DataFile, ...]:
    """Return the base and log files that cleans requested later than `after` removed or may be removing.

    An earlier clean removed nothing that a read as of `after` needs, because it kept the newest slices of its own time.
    """
    cleans = [clean for clean in table.timeline.where(action=Action.CLEAN) if clean.requested > after]
    with ThreadPoolExecutor(_READERS) as pool:
        contents = list(pool.map(lambda clean: _content(table, clean), cleans))
    # Archived cleans are older than the first write of the active timeline.
    reaches_back = after < first_write(table.timeline)
    archived = table.store.archived_actions(Action.CLEAN, after) if reaches_back else []
    contents += [(action.plan, action.metadata) for action in archived]
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
        # Hudi deletes the whole directory, including files that neither the plan nor the metadata lists.
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
    """Raise CleanedHistoryError if a clean removed a file from the newest slices as of `at`.

    Args:
        table: The loaded table.
        slices: The slices as of `at` that were built from the listed files.
        visible: The part of the timeline that is visible at `at`.
        at: The requested time of the read.
        keep: Returns whether a partition is read; None reads all.
    """
    is_read = None if keep is None else cache(keep)
    cleaned = [f for f in cleaned_files(table, at) if is_read is None or not f.partition or is_read(f.partition)]
    if not cleaned:
        return
    files = [file for file_slice in slices for file in _files(file_slice)]
    listed = {file.path for file in files}
    removed = [file for file in cleaned if file.path not in listed]
    files = [*files, *removed]
    complete = latest_slices(files, _with_archived_replaces(table, files, visible), layout=table.config.layout)
    missing = {file.path for file in removed}.intersection(path for s in complete for path in slice_paths(s))
    if missing:
        raise CleanedHistoryError(
            f"{table.env.storage.root} cannot be read as of {at} any more: cleans removed {len(missing)} of its "
            f"files, such as {min(missing)}. {_advice(table, at)}",
            as_of=at,
            missing=sorted(missing),
        )


def _with_archived_replaces(table: LoadedTable, files: Sequence[DataFile], visible: VisibleTimeline) -> VisibleTimeline:
    """Add the file groups that archived replacecommits replaced to `visible`; removed files may belong to them."""
    replacing = archived_writes(table).where(action=Action.REPLACECOMMIT)
    commits = table.store.summaries(instant for instant in replacing if visible.shows(instant.requested))
    hidden = {(replaced.partition, replaced.file_id): replaced.instant for replaced in replacements(commits)}
    return replace(with_archived_completions(table, files, visible), replaced={**hidden, **visible.replaced})


def _advice(table: LoadedTable, at: str) -> str:
    retained = [earliest for clean in _completed(table) if (earliest := decode_clean_metadata(clean).earliest) > at]
    savepoints = sorted(table.timeline.savepoints())
    ways = [f"read it as of {max(retained)} or later"] if retained else ["read it as of a later time"]
    ways += [f"as of a savepoint ({', '.join(savepoints)})"] if savepoints else []
    return f"{', or '.join(ways).capitalize()}; hoodie.clean.commits.retained sets how much later cleans keep"


def _completed(table: LoadedTable) -> list[bytes]:
    cleans = table.timeline.where(action=Action.CLEAN, state=State.COMPLETED)
    return [data for clean in cleans if (data := table.store.read(clean, State.COMPLETED))]


def _content(table: LoadedTable, clean: Instant) -> tuple[bytes | None, bytes | None]:
    """Return (plan, None) for a clean, or (None, metadata) if its plan is missing."""
    plan = table.store.read(clean, State.REQUESTED)
    return plan, table.store.read(clean, State.COMPLETED) if clean.is_completed and not plan else None


def _files(file_slice: FileSlice) -> Iterable[DataFile]:
    if file_slice.base is not None:
        yield file_slice.base
    yield from file_slice.logs


def _data_file(path: str) -> DataFile | None:
    partition, _, name = path.rpartition("/")
    return parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
