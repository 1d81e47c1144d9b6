"""Edit completed commits on storage, for tests that change a committed file deliberately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.commit import CommitMetadata, WriteStat

_TIMELINE = ".hoodie/timeline"


def completed_commits(storage: Storage) -> list[str]:
    """Return the paths of completed commits and delta commits."""
    files, _ = storage.list_dir(_TIMELINE)
    return [file.path for file in files if file.name.endswith("commit") and "_" in file.name]


def edit_commit(storage: Storage, path: str, change: Callable[[CommitMetadata], CommitMetadata]) -> None:
    """Replace the metadata of a commit by the result of `change`."""
    metadata = change(decode_commit(storage.get(path)))
    storage.put(path, table_layout(9).encode_commit(metadata))


def restate(storage: Storage, path: str, change: Callable[[WriteStat], WriteStat] | None = None) -> None:
    """Update a file's statistics in the commits that name it.

    Without `change` the size is set to the current size of the file.
    """
    size = len(storage.get(path))

    def stated(metadata: CommitMetadata) -> CommitMetadata:
        stats = [
            (change(stat) if change else replace(stat, size_bytes=size)) if stat.path == path else stat
            for stat in metadata.stats
        ]
        return replace(metadata, stats=tuple(stats))

    for commit in completed_commits(storage):
        if any(stat.path == path for stat in decode_commit(storage.get(commit)).stats):
            edit_commit(storage, commit, stated)
