"""Roll back an action's record in the metadata table (MDT-9).

The rollback on the metadata table has the requested time of the rollback on the data table. It is completed before the
rolled-back instant is deleted from the data timeline. Otherwise a completed delta commit would count as valid, because
its data instant would look archived.

In version 6 the rollback on the data table has a delta commit of its own, with the log files that it wrote. So the
delta commit of the rolled-back instant is removed without an instant. Its log files are named after their slice, so
their blocks show which ones they are. A log file that Hudi extended has blocks of other delta commits, too, and stays.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.rollback import encode_rollback_metadata, encode_rollback_plan
from lakehouse.core.metadata.place import METADATA, listed_partitions
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import RollbackMetadata, RollbackPlan, RollbackRequest
from lakehouse.model.instant import Action, Instant, State, Timeline

logger = logging.getLogger(__name__)


def roll_back_metadata(store: MetadataStore, rollback: str, target: str, lock: TableLock) -> bool:
    """Remove the records of the instant `target` from the metadata table, in a rollback at the time `rollback`.

    Returns False, and removes nothing, if a compaction of the metadata table already contains the records: single
    records cannot be removed from the files of a compaction. Call under the table lock.
    """
    usable, building = listed_partitions(read_properties(store.env.storage) or {})
    names = tuple(dict.fromkeys((*usable, *building)))
    if not names:
        return True
    timelines = store.timeline_store
    timeline = timelines.load()
    recorded = _recorded(timeline, target)
    undoing = timeline.find(rollback)
    if recorded is None and undoing is None:
        return True
    if recorded is not None and _is_compacted(store, timeline, recorded):
        return False
    if store.config.layout.names_logs_by_slice:
        return recorded is None or _remove_blocks(store, recorded, names)
    started_ms = store.env.clock.now_ms()
    files = {} if recorded is None else _log_files(store, recorded, names)
    plan = RollbackPlan(
        target=target,
        action=str(Action.DELTACOMMIT),
        requests=tuple(RollbackRequest(partition=name, files=paths) for name, paths in sorted(files.items())),
    )
    if undoing is None:
        data = encode_rollback_plan(plan, base_path=store.inner.storage.root)
        undoing = timelines.begin(rollback, Action.ROLLBACK, data)
    if undoing.is_completed:
        if recorded is not None:
            remove_instant(store, target, names)
        return True
    if undoing.state is State.REQUESTED:
        undoing = timelines.start(undoing, b"")
    if recorded is not None:
        lock.check()
        _remove(store, recorded, files, names)
    metadata = RollbackMetadata(
        start_time=rollback,
        seconds=(store.env.clock.now_ms() - started_ms) / 1000,
        target=target,
        action=str(Action.DELTACOMMIT),
        deleted=files,
    )
    data = encode_rollback_metadata(metadata, base_path=store.inner.storage.root)
    rest = [instant for instant in timeline if instant.key not in {undoing.key, (target, Action.DELTACOMMIT)}]
    timelines.complete(undoing, Timeline((*rest, undoing)), data, lock.below(METADATA))
    logger.info("%s: the metadata table rolled back %s", store.env.storage.root, target)
    return True


def remove_instant(store: MetadataStore, target: str, names: Collection[str]) -> None:
    """Remove a delta commit and its log files, because the action will write it again; call under the table lock."""
    recorded = _recorded(store.timeline_store.load(), target)
    if recorded is None:
        return
    if not store.config.layout.names_logs_by_slice:
        _remove(store, recorded, _log_files(store, recorded, names), names)
    elif not _remove_blocks(store, recorded, names):
        root = store.inner.storage.root
        raise CorruptTableError(
            f"{root}: log files have blocks of {target}, which must be written again, beside blocks of other delta "
            "commits; run `lakehouse metadata rebuild`",
            instant=target,
        )


def remove_recorded(store: MetadataStore, target: str) -> bool:
    """Remove the delta commit of an action that will not be committed; call under the table lock.

    Returns False, and removes nothing, if a compaction of the metadata table already contains its records.
    """
    usable, building = listed_partitions(read_properties(store.env.storage) or {})
    names = dict.fromkeys((*usable, *building))
    timeline = store.timeline_store.load() if names else Timeline(())
    recorded = _recorded(timeline, target)
    if recorded is None:
        return True
    if _is_compacted(store, timeline, recorded):
        return False
    if store.config.layout.names_logs_by_slice:
        return _remove_blocks(store, recorded, names)
    _remove(store, recorded, _log_files(store, recorded, names), names)
    return True


def _recorded(timeline: Timeline, target: str) -> Instant | None:
    matches = (instant for instant in timeline if instant.key == (target, Action.DELTACOMMIT))
    return next(matches, None)


def _is_compacted(store: MetadataStore, timeline: Timeline, recorded: Instant) -> bool:
    """Return whether a compaction or log compaction that may contain the delta commit is completed."""
    if not recorded.is_completed:
        return False
    if store.config.layout.names_logs_by_slice:
        # A compaction has the time of its newest delta commit, with a suffix.
        compactions = timeline.where(action=(Action.COMMIT, Action.COMPACTION))
        return any(compaction.requested > recorded.requested for compaction in compactions)
    writes = timeline.where(action=(Action.COMMIT, Action.DELTACOMMIT), state=State.COMPLETED)
    later = [write for write in writes if write.requested > recorded.completion]
    return any(write.action is Action.COMMIT or store.is_log_compaction(write) for write in later)


def _remove_blocks(store: MetadataStore, recorded: Instant, names: Iterable[str]) -> bool:
    """Remove a delta commit of version 6 with its log files.

    Returns False, and removes nothing, if a file has blocks of other delta commits, too.
    """
    storage = store.inner.storage
    paths = [f"{name}/{file}" for name in names for file in storage.list_names(name) if _is_log(file)]
    writers = dict(zip(paths, send_all(storage, partial(_writers, storage), paths), strict=True))
    own = [path for path, instants in writers.items() if recorded.requested in instants]
    if any(writers[path] != {recorded.requested} for path in own):
        return False
    timelines = store.timeline_store
    if recorded.is_completed:
        timelines.withdraw(recorded)
    store.remove_files(own)
    timelines.remove_pending(replace(recorded, state=State.INFLIGHT, action=Action.DELTACOMMIT, completed=None))
    return True


def _is_log(name: str) -> bool:
    return parse_log_file(name, "", 0) is not None


def _writers(storage: Storage, path: str) -> set[str]:
    """Return the instants of the blocks in a log file, incomplete blocks included."""
    with storage.open_input(path) as source:
        return {block.writer or block.instant for block in scan_blocks(source)}


def _log_files(store: MetadataStore, recorded: Instant, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the log files of a delta commit by partition, as paths relative to the metadata table.

    A pending delta commit does not list its files, so the folders of the partitions are listed.
    """
    if recorded.is_completed:
        data = store.timeline_store.read(recorded, State.COMPLETED)
        stats = decode_commit(data).stats if data else ()
        if stats:
            of: dict[str, list[str]] = {}
            for stat in stats:
                of.setdefault(stat.partition, []).append(stat.path)
            return {name: tuple(sorted(paths)) for name, paths in of.items()}
    marked = f"_{recorded.requested}.log."
    list_names = store.inner.storage.list_names
    files = {name: tuple(f"{name}/{file}" for file in list_names(name) if marked in file) for name in names}
    return {name: paths for name, paths in files.items() if paths}


def _remove(store: MetadataStore, recorded: Instant, files: Mapping[str, Iterable[str]], names: Iterable[str]) -> None:
    """Delete the completed file, then the log files, then the pending files: a crash leaves a pending instant."""
    timelines = store.timeline_store
    if recorded.is_completed:
        timelines.withdraw(recorded)
    else:
        store.remove_unfinished(names, recorded.requested)
    store.remove_files(path for paths in files.values() for path in paths)
    timelines.remove_pending(replace(recorded, state=State.INFLIGHT, action=Action.DELTACOMMIT, completed=None))
