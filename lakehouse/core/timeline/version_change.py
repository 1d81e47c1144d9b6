"""Move a table to another version: copy its timeline, then switch the properties, then delete the old timeline.

    <source>/lakehouse.to_version_<n>.pending    from here on writers of this package are refused
    <target>/<instants>                          copies in the names and encodings of the new version
    the pending mark again                       with the names of all copied files
    hoodie.properties                            compare-and-swap: this is the commit of the change
    <source>/lakehouse.to_version_<n>            processes that loaded the table earlier load it again
    delete <source>/<instants>, the oldest first, then the pending mark

Readers see the old timeline before the switch, and the new one after it. A crash before the switch changes nothing for
readers. The next run removes the mark and starts again; before that it rewrites the properties with other bytes, so a
suspended process cannot switch any more. A crash after the switch leaves the old files, and the next run deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_requested_replace
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import moves_timeline
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import PROPERTIES, PROPERTIES_BACKUP
from lakehouse.core.timeline.version_marks import Journal, VersionMark, decode_journal, marks_among
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, RetryableError
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State

_WORKERS = 8
_COMMENT = "Updated by lakehouse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of the timeline before and after a change; equal if only the properties change."""

    source: str
    target: str

    @property
    def are_equal(self) -> bool:
        """Whether the timeline stays where it is."""
        return self.source == self.target


def folders_of(config: TableConfig, target: TableLayout) -> Folders:
    """Return the timeline folders of a table before and after the change to version `target`."""
    source = config.layout.timeline_folder(config.timeline_path)
    moved = target.timeline_folder("timeline" if moves_timeline(config.layout, target) else config.timeline_path)
    return Folders(source=source, target=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFile:
    """One file of the timeline with its instant, and its modification time in UTC milliseconds."""

    name: str
    instant: Instant
    modified_ms: int


def timeline_files(env: Env, folder: str) -> tuple[TimelineFile, ...]:
    """Return the files of a timeline folder that are files of instants."""
    files, _ = env.storage.list_dir(folder)
    pairs = ((file, parse_instant(file.name)) for file in files)
    return tuple(
        TimelineFile(name=file.name, instant=instant, modified_ms=file.modified_ms)
        for file, instant in pairs
        if instant is not None
    )


# parameters: the files, the layouts of both sides, their folders and the completion times
def copy_timeline(
    env: Env,
    files: Iterable[TimelineFile],
    layouts: tuple[TableLayout, TableLayout],
    folders: Folders,
    completions: Mapping[Instant, str],
    lock: TableLock,
) -> None:
    """Create the copies of timeline files in the target folder, and delete other instants there.

    The instants in the target folder belong to an earlier change that was not completed, or that was completed and not
    cleaned up.

    Raises RetryableError if the lock was lost.
    """
    _, target = layouts
    listed = tuple(files)
    clustering = _clusterings(env, listed, folders.source, target)
    names = {file: _new_name(file.instant, target, completions, clustering) for file in listed}
    present = {file.name for file in timeline_files(env, folders.target)}
    env.storage.delete_many(f"{folders.target}/{name}" for name in sorted(present - set(names.values())))
    stale = [mark.name for mark in marks_among(env.storage.list_names(folders.target))]
    env.storage.delete_many(f"{folders.target}/{name}" for name in stale)

    def copy(file: TimelineFile) -> None:
        data = _converted(env, file, folders.source, target)
        path = f"{folders.target}/{names[file]}"
        lock.check_lease()
        if names[file] in present:
            env.storage.put(path, data)
            return
        try:
            env.storage.create(path, data)
        except CommitStateUnknownError:
            # Every process that copies the file writes the same bytes.
            env.storage.put(path, data)

    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(copy, listed))


def begin_change(env: Env, folder: str, version: int, lock: TableLock) -> VersionMark:
    """Create the pending mark of a change, and return it. Raises RetryableError if the lock was lost.

    The caller has removed older pending marks with `abandon_change`.
    """
    mark = VersionMark(version=str(version), is_pending=True)
    data = Journal(token=env.ids.uuid()).encode()
    path = f"{folder}/{mark.name}"
    made = lock.create(path, data)
    if made is None:
        made = env.storage.create(path, data, unique=True)
        # Another process may commit if the lock was lost before the mark existed. Afterwards it sees the mark.
        lock.confirm()
    if not made:
        raise RetryableError(f"{env.storage.root}: another process changes the table version; run the command again")
    return mark


def abandon_change(env: Env, folder: str, mark: VersionMark, lock: TableLock) -> None:
    """Remove the pending mark of a change before its switch; call under the lock, with the version of the source.

    The properties get other bytes first. So a suspended process of the change fails at its switch.
    """
    lock.check()
    data, tag = env.storage.get_tagged(PROPERTIES)
    touched = render_properties(parse_properties(data), comments=(_COMMENT, f"change abandoned: {env.ids.uuid()}"))
    if env.storage.replace_if(PROPERTIES, touched, tag) is None:
        raise RetryableError(f"{env.storage.root}/{PROPERTIES} was changed by another writer; run the command again")
    env.storage.delete_many([f"{folder}/{mark.name}"])


# parameters: the mark with its folder, the copied names, the properties and their version on storage
def switch(env: Env, path: str, names: Iterable[str], properties: Mapping[str, str], tag: str, lock: TableLock) -> None:
    """Store the names of the copied files in the pending mark at `path`, then replace the properties.

    Raises RetryableError if the lock was lost or the properties have another version than `tag`: the change did not
    take place.
    """
    journal = Journal(token=env.ids.uuid(), names=tuple(sorted(names)))
    env.storage.put(path, journal.encode())
    lock.check()
    data = render_properties(properties, comments=(_COMMENT, f"version change {journal.token}"))
    if env.storage.replace_if(PROPERTIES, data, tag) is None:
        raise RetryableError(
            f"{env.storage.root}/{PROPERTIES} was changed by another writer during the change of the version, which "
            "did not take place; run the command again"
        )


def finish_change(env: Env, folder: str, mark: VersionMark) -> None:
    """Create the mark of the completed change in the source folder, and delete a properties backup of Hudi."""
    done = replace(mark, is_pending=False)
    if done not in marks_among(env.storage.list_names(folder)):
        env.storage.put(f"{folder}/{done.name}", Journal(token=env.ids.uuid()).encode())
    env.storage.delete_many([PROPERTIES_BACKUP])


def delete_source(env: Env, folders: Folders, mark: VersionMark, lock: TableLock) -> None:
    """Delete the instants of the old timeline, and the pending mark; call under the lock after `finish_change`.

    Completed files are deleted one by one, the oldest first: for a reader that still lists them, the timeline starts
    later, and older files count as committed.

    Raises CorruptTableError if there is a completed action that was not copied: a writer did not use the lock.
    """
    path = f"{folders.source}/{mark.name}"
    try:
        copied = decode_journal(env.storage.get(path)).names or ()
    except NotFoundError:
        return
    if folders.are_equal:
        others = [m.name for m in marks_among(env.storage.list_names(folders.source)) if m.version != mark.version]
        env.storage.delete_many(f"{folders.source}/{name}" for name in others)
        env.storage.delete_many([path])
        return
    files = timeline_files(env, folders.source)
    foreign = sorted(file.name for file in files if file.instant.is_completed and file.name not in copied)
    if foreign:
        raise CorruptTableError(
            f"{env.storage.root}: another program completed {foreign[0]} in {folders.source} while the table version "
            "was changed, without the table lock. Its rows are not in the table. Stop the program, write the rows "
            f"again, delete {folders.source}/{foreign[0]}, and run the command again",
            path=f"{folders.source}/{foreign[0]}",
        )
    lock.check()
    env.storage.delete_many(f"{folders.source}/{file.name}" for file in files if not file.instant.is_completed)
    for file in sorted(files, key=lambda file: file.instant.requested):
        if file.instant.is_completed:
            lock.check_lease()
            env.storage.delete_many([f"{folders.source}/{file.name}"])
    env.storage.delete_many([path])


def _new_name(
    instant: Instant, target: TableLayout, completions: Mapping[Instant, str], clustering: frozenset[str]
) -> str:
    if instant.is_completed:
        completed = completions.get(instant) if target.has_completion_times else None
        return target.instant_name(replace(instant, completed=completed))
    if instant.action is Action.REPLACECOMMIT and instant.requested in clustering:
        return target.instant_name(replace(instant, action=Action.CLUSTERING))
    return target.instant_name(instant)


def _clusterings(env: Env, files: Iterable[TimelineFile], folder: str, target: TableLayout) -> frozenset[str]:
    """Return the requested times of replacecommits with a clustering plan, if the target has an action for them."""
    if not target.has_clustering_action:
        return frozenset()
    plans = [
        file for file in files if file.instant.action is Action.REPLACECOMMIT and file.instant.state is State.REQUESTED
    ]
    return frozenset(
        file.instant.requested for file in plans if decode_requested_replace(env.storage.get(f"{folder}/{file.name}"))
    )


def _converted(env: Env, file: TimelineFile, folder: str, target: TableLayout) -> bytes:
    """Return the content of a timeline file in the encoding of the target: only commit metadata differs."""
    path = f"{folder}/{file.name}"
    data, instant = env.storage.get(path), file.instant
    if instant.action not in WRITE_ACTIONS or instant.state is State.REQUESTED:
        return data
    try:
        if instant.is_completed:
            metadata = decode_commit(data)
            return target.encode_commit(metadata, replace=instant.action is Action.REPLACECOMMIT)
        return target.encode_inflight(replace(decode_commit(data), replaced={})) if data else data
    except CorruptTableError as error:
        raise CorruptTableError(f"{env.storage.root}/{path}: {error.message}", **error.facts) from error
