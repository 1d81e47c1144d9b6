"""The metadata table of one table on storage: its timeline and the names of its file groups (MDT-2)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import INIT_PREFIX, METADATA, metadata_config, metadata_env
from lakehouse.core.metadata.read.cache import MetadataCache
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import is_temporary
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.model.instant import Action, Instant, Timeline

_LISTERS = 8


class MetadataStore:
    """The metadata table of a data table. It is carried over when a table is reloaded, so that names are listed once.

    Attributes:
        env: The environment of the data table.
        config: The configuration of the data table.
        inner: The environment of the metadata table.
        timeline_store: The timeline of the metadata table.
        cache: What readers keep of its files.
    """

    def __init__(self, env: Env, config: TableConfig) -> None:
        self.env, self.config = env, config
        self.inner = metadata_env(env)
        self.timeline_store = TimelineStore(self.inner, metadata_config(config))
        self.cache = MetadataCache()
        #: The index definitions as they were read last.
        self.definitions: dict[str, Definition] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._builds: frozenset[tuple[str, str]] = frozenset()

    def groups(self, names: Iterable[str], timeline: Timeline, data: Timeline) -> dict[str, tuple[str, ...]]:
        """Return the sorted file ids of index partitions; the position of a file id is its shard.

        The number of groups is stored nowhere, so a folder is listed once after each build of a partition.
        """
        builds = _builds(timeline, data)
        if builds != self._builds:
            self._groups, self._builds = {}, builds
        missing = [name for name in names if name not in self._groups]
        if missing:
            with ThreadPoolExecutor(min(_LISTERS, len(missing))) as pool:
                self._groups.update(zip(missing, pool.map(self._listed, missing), strict=True))
        return {name: self._groups[name] for name in names}

    def add_groups(self, name: str, file_ids: Iterable[str]) -> None:
        """Remember file groups that a commit created."""
        self._groups[name] = tuple(sorted({*self._groups.get(name, ()), *file_ids}))

    def forget(self) -> None:
        """Forget the names of file groups, because a partition was dropped or built."""
        self._groups = {}

    def remove_files(self, paths: Iterable[str]) -> None:
        """Delete files of the metadata table, by their paths relative to it."""
        delete_leftovers(self.env.storage, [f"{METADATA}/{path}" for path in paths])

    def remove_unfinished(self, names: Iterable[str], requested: str) -> None:
        """Delete temporary files of the instant `requested`, which a killed process left in folders of partitions."""
        list_names, of_instant = self.inner.storage.list_names, f"_{requested}"
        listed = ((name, file) for name in names for file in list_names(name))
        self.remove_files(f"{name}/{file}" for name, file in listed if is_temporary(file) and of_instant in file)

    def is_log_compaction(self, delta: Instant) -> bool:
        """Return whether a delta commit of the last load is a completed log compaction, by its requested file."""
        return any(known.action is Action.LOGCOMPACTION for known in self.timeline_store.pending_files(delta))

    def _listed(self, name: str) -> tuple[str, ...]:
        # Temporary files of crashed writes and checksum files of Hudi are no file groups.
        names = [file for file in self.inner.storage.list_names(name) if not is_temporary(file)]
        parsed = [parse_base_file(file, name, 0) or parse_log_file(file, name, 0) for file in names]
        return tuple(sorted({file.file_id for file in parsed if file is not None}))


def _builds(timeline: Timeline, data: Timeline) -> frozenset[tuple[str, str]]:
    """Return the instants at which partitions were built: those of initialisation and of indexing actions."""
    indexing = {instant.requested for instant in data.where(action=Action.INDEXING)}

    def is_build(instant: Instant) -> bool:
        return instant.requested.startswith(INIT_PREFIX) or instant.requested in indexing

    return frozenset((instant.requested, instant.completed or "") for instant in timeline if is_build(instant))
