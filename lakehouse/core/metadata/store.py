"""The metadata table of one table on storage: its timeline and the names of its file groups (MDT-2)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.hfile.entries import Entries, entry_count
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import METADATA, metadata_config, metadata_env
from lakehouse.core.metadata.read.layers import DECODED_ROWS, LayerReader, MetadataCache
from lakehouse.core.metadata.read.slices import metadata_file
from lakehouse.core.metadata.read.validity import is_build
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import FileInfo, is_temporary
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, Timeline

#: Maximum number of decoded rows cached from a file group's newest log file; a row takes about 400 bytes.
_KEPT_ROWS = 20_000


class MetadataStore:
    """The metadata table of a data table. A reloaded table keeps this object, so that names are listed only once.

    Attributes:
        env: The environment of the data table.
        config: The configuration of the data table.
        inner: The environment of the metadata table.
        timeline_store: The timeline of the metadata table.
        cache: The opened files that readers keep.
        records: The schema of the records in new files; see `use_stored_schema`.
    """

    def __init__(self, env: Env, config: TableConfig) -> None:
        self.env, self.config = env, config
        self.inner = metadata_env(env)
        self.timeline_store = TimelineStore(self.inner, metadata_config(config))
        self.cache = MetadataCache()
        self.records = config.layout.metadata_schema
        #: The index definitions that were read last.
        self.definitions: dict[str, Definition] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._newest_rows: dict[tuple[str, str], Hashable] = {}
        self._builds: frozenset[tuple[str, str]] = frozenset()
        #: In a commit of a table without completion times: the instants at the last listings, and the listings.
        self._held: tuple[frozenset[tuple[str, str]], dict[str, list[FileInfo]]] | None = None
        self._defined: tuple[tuple[str, ...], frozenset[tuple[str, str]], frozenset[str]] | None = None

    def groups(self, names: Sequence[str], timeline: Timeline, data: Timeline) -> dict[str, tuple[str, ...]]:
        """Return the sorted file ids of index partitions; the position of a file id is its shard.

        The number of groups is stored nowhere, so a folder is listed once after each build of a partition. Without
        completion times a second build may have the times of the first one, so folders are always listed (`folders`).
        """
        if not self.config.layout.has_completion_times:
            listed = self.folders(names, completions_of(timeline))
            return {name: _file_ids(name, files) for name, files in zip(names, listed, strict=True)}
        builds = _builds(timeline, data)
        if not builds <= self._builds:
            self._groups = {}
        # A build that is no longer on the timeline was archived, so it changes nothing.
        self._builds = builds
        missing = [name for name in names if name not in self._groups]
        if missing:
            self._groups.update(zip(missing, send_all(self.inner.storage, self._listed, missing), strict=True))
        return {name: self._groups[name] for name in names}

    def add_groups(self, name: str, file_ids: Iterable[str]) -> None:
        """Remember file groups that a commit created."""
        self._groups[name] = tuple(sorted({*self._groups.get(name, ()), *file_ids}))

    def forget(self) -> None:
        """Forget the names of file groups and the definitions, because a partition was dropped or built."""
        self._groups, self._defined = {}, None

    def folders(self, names: Sequence[str], completions: frozenset[tuple[str, str]]) -> list[list[FileInfo]]:
        """Return the files of folders.

        A folder is listed again if the completed instants have changed since its last listing, and always without
        completion times: a delta commit that was removed and written again has the same time, but other files.

        Args:
            names: Index partitions.
            completions: The requested and the completion time of each completed instant on the metadata timeline.
        """
        if not self.config.layout.has_completion_times:
            return self._listed_folders(names, completions)
        held = {name: self.cache.peek(("folder", name)) for name in names}
        missing = [name for name in names if held[name] is None or held[name][0] != completions]
        listed = send_all(self.inner.storage, lambda name: self.inner.storage.list_dir(name)[0], missing)
        for name, files in zip(missing, listed, strict=True):
            held[name] = completions, files
            self._put_folder(name, completions, files)
        return [held[name][1] for name in names]

    @contextmanager
    def one_listing(self) -> Iterator[None]:
        """In this block, which runs under the table lock, list a folder once for each state of the timeline.

        Outside of it, folders of tables without completion times are listed for each reader. The block has no effect on
        other tables.
        """
        self._held = frozenset(), {}
        try:
            yield
        finally:
            self._held = None

    def _listed_folders(self, names: Sequence[str], completions: frozenset[tuple[str, str]]) -> list[list[FileInfo]]:
        held = self._held
        # Only the holder of the lock completes instants. A reader in another thread has the same instants or lists.
        files = held[1] if held is not None and held[0] == completions else {}
        missing = [name for name in names if name not in files]
        listed = send_all(self.inner.storage, lambda name: self.inner.storage.list_dir(name)[0], missing)
        files = {**files, **dict(zip(missing, listed, strict=True))}
        if held is not None:
            self._held = completions, files
        return [files[name] for name in names]

    def keep_files(
        self, names: Iterable[str], before: Timeline, done: Instant, stats: Iterable[WriteStat] = ()
    ) -> None:
        """Update the cached listings of some folders with the files of an instant that this process completed.

        A listing is cached together with the instants that were completed at that time. Only listings that were cached
        for the instants `before` are updated.
        """
        written: dict[str, list[FileInfo]] = {}
        for stat in stats:
            info = FileInfo(path=stat.path, size_bytes=stat.size_bytes, modified_ms=0)
            written.setdefault(stat.partition, []).append(info)
        state = completions_of(before)
        after = state | {(done.requested, done.completion)}
        for name in names:
            held = self.cache.peek(("folder", name))
            if held is not None and held[0] == state:
                self._put_folder(name, after, [*held[1], *written.get(name, ())])

    def keep_archived(self, names: Iterable[str], before: Timeline, archived: Iterable[Instant]) -> None:
        """Keep the folder listings of the timeline `before` for the timeline without the archived instants."""
        state = completions_of(before)
        after = state - {(instant.requested, instant.completion) for instant in archived}
        for name in names:
            held = self.cache.peek(("folder", name))
            if held is not None and held[0] == state:
                self._put_folder(name, after, held[1])

    def _put_folder(self, name: str, completions: frozenset[tuple[str, str]], files: list[FileInfo]) -> None:
        self.cache.put(("folder", name), (completions, files), 200 * len(files))

    def keep_definitions(self, names: Sequence[str], before: Timeline, done: Instant, data: Timeline) -> None:
        """Remember that `definitions` describe the listed partitions after an instant of this process."""
        after = completions_of(before) | {(done.requested, done.completion)}
        self._defined = (tuple(names), after, _indexings(data))

    def has_definitions(self, names: Sequence[str], timeline: Timeline, data: Timeline) -> bool:
        """Return whether `definitions` still describe the listed partitions.

        An index is created by an indexing action and instants of the metadata table, dropped by a change of the listed
        partitions, and extended by columns in a delta commit. If none of these changed, the definitions did not change.
        """
        return self._defined == (tuple(names), completions_of(timeline), _indexings(data))

    # parameters: the file and its contents
    def keep_log(
        self, done: Instant, stat: WriteStat, entries: Entries, deletes: pa.Array, rows: pa.Table | None = None
    ) -> None:
        """Keep the records of a small log file that this process wrote for a completed delta commit.

        A larger log file with decoded rows is kept until the next commit, which reads many of the rows again.
        """
        log = parse_log_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes)
        assert log is not None, f"{stat.path} is a log file"
        if entry_count(entries) + len(deletes) <= DECODED_ROWS:
            self._layers(done).keep_log(log, done.requested, (entries, deletes))
        elif rows is not None and rows.num_rows <= _KEPT_ROWS:
            place = (stat.partition, stat.file_id)
            self.cache.drop(self._newest_rows.get(place))
            self._newest_rows[place] = self._layers(done).keep_log(log, done.requested, (entries, deletes), rows)

    def keep_base(self, done: Instant, base: BaseFile, entries: Entries) -> None:
        """Keep the records of a small base file that this process wrote for a completed compaction."""
        self._layers(done).keep_base(base, entries, self.records.files)

    def _layers(self, done: Instant) -> LayerReader:
        completions = {done.requested: done.completion}
        return LayerReader(self.inner.storage, self.cache, completions, self.config)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Delete files of the metadata table, by their paths relative to it, and in the kept listings of folders."""
        gone = dict.fromkeys(paths)
        if self._held is not None:
            self._held = frozenset(), {}
        for name in {path.rpartition("/")[0] for path in gone}:
            held = self.cache.peek(("folder", name))
            if held is not None:
                self._put_folder(name, held[0], [file for file in held[1] if file.path not in gone])
        delete_leftovers(self.env.storage, [f"{METADATA}/{path}" for path in gone])

    def remove_unfinished(self, names: Iterable[str], requested: str) -> None:
        """Delete temporary files of the instant `requested`, which a killed process left in folders of partitions."""
        list_names, of_instant = self.inner.storage.list_names, f"_{requested}"
        listed = ((name, file) for name in names for file in list_names(name))
        self.remove_files(f"{name}/{file}" for name, file in listed if is_temporary(file) and of_instant in file)

    def remove_abandoned(self, lease_ms: int) -> None:
        """Delete temporary files that killed processes left on the timeline, as of its last load.

        Files of the timeline are created under the lock, so one that is older than its lease is abandoned.
        """
        now_ms = self.env.clock.now_ms()
        unfinished = self.timeline_store.unfinished
        delete_leftovers(self.inner.storage, [file.path for file in unfinished if now_ms > file.modified_ms + lease_ms])

    def is_log_compaction(self, delta: Instant) -> bool:
        """Return whether a delta commit of the last load is a completed log compaction, by its requested file."""
        return any(pending.action is Action.LOGCOMPACTION for pending in self.timeline_store.pending_files(delta))

    def _listed(self, name: str) -> tuple[str, ...]:
        names = self.inner.storage.list_names(name)
        parsed = [parse_base_file(file, name, 0) or parse_log_file(file, name, 0) for file in names if _is_file(file)]
        return tuple(sorted({file.file_id for file in parsed if file is not None}))


def _is_file(name: str) -> bool:
    """Return whether a file may belong to a file group.

    Temporary files of crashed writes and checksum files of Hudi do not.
    """
    return not is_temporary(name)


def _file_ids(name: str, files: Iterable[FileInfo]) -> tuple[str, ...]:
    """Return the sorted file ids in a listed folder."""
    parsed = (metadata_file(file.name, name, file.size_bytes) for file in files if _is_file(file.name))
    return tuple(sorted({file.file_id for file in parsed if file is not None}))


def completions_of(timeline: Timeline) -> frozenset[tuple[str, str]]:
    """Return the requested and the completion time of each completed instant."""
    return frozenset((instant.requested, instant.completion) for instant in timeline if instant.is_completed)


def _indexings(data: Timeline) -> frozenset[str]:
    return frozenset(instant.requested for instant in data.where(action=Action.INDEXING))


def _builds(timeline: Timeline, data: Timeline) -> frozenset[tuple[str, str]]:
    """Return the instants at which partitions were built: by initialisation or by an indexing action."""
    indexing = _indexings(data)
    builds = (instant for instant in timeline if is_build(instant) or instant.requested in indexing)
    return frozenset((instant.requested, instant.completed or "") for instant in builds)
