"""Deleting files whose names come from metadata: markers, plans, publication state, listings. Each name is checked.

    data files    relative, normalised, outside `.hoodie`, the name of a base file, log file, change log or partition
                  metadata, not below a nested table, not reached through a symbolic link
    leftovers     inside `.hoodie`, in one of the folders that hold nothing but what a writer leaves behind

A plan is checked as a whole before its first file goes: a plan with one refused name deletes nothing. Metadata may be
damaged, or written by a party that must not reach files outside of its table. An architecture test lists the modules
that may call the deleting verbs of storage themselves, each with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lakehouse.core.format.file_names import instant_of, is_data_file, is_partition_metadata
from lakehouse.core.storage.local_links import linked, outside
from lakehouse.core.storage.nested_tables import HOODIE
from lakehouse.core.storage.protocol import Storage, is_temporary
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Action

#: What holds nothing but leftovers: of one instant, or of a metadata table that was dropped.
_LEFTOVERS = re.compile(
    r"\.hoodie/(?:"
    r"(?:\.temp|\.staging)/\d+/.+"
    r"|\.heartbeat/\d+"
    r"|\.tombstones/\d+_\d+_[0-9a-z-]+\.parquet"
    r"|\.bucket_index/partition_bucket_index_meta/configs/\d+\.hashing_config"
    r"|metadata/.+"
    r"|hoodie\.properties\.backup"
    r"|next_writer\.json"
    r")",
    re.ASCII,
)


def check_data_files(
    storage: Storage, paths: Iterable[str], source: str, *, written_by: str = "", unfinished: bool = False
) -> None:
    """Raise CorruptTableError naming what `source` must not delete, if it names anything but data files of the table.

    With `written_by` all base and log files must bear this instant: what undoes a write deletes no other's files.
    """
    refused = refused_data_files(storage, paths, written_by=written_by, unfinished=unfinished)
    if not refused:
        return
    path, why = next(iter(refused.items()))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    raise CorruptTableError(
        f"{storage.root}: {source} names {path!r}{more} for deletion, but {why}. The metadata is damaged or forged, so "
        "nothing of it is deleted. Find out who wrote it; then remove it, or delete the rest by hand.",
        path=path,
        refused=sorted(refused),
    )


def delete_data_files(
    storage: Storage, paths: Sequence[str], source: str, *, written_by: str = "", unfinished: bool = False
) -> None:
    """Delete data files that `source` names; raise CorruptTableError and delete none if one name is refused."""
    check_data_files(storage, paths, source, written_by=written_by, unfinished=unfinished)
    storage.delete_many(paths)


def refused_data_files(
    storage: Storage, paths: Iterable[str], *, written_by: str = "", unfinished: bool = False
) -> dict[str, str]:
    """Return the paths that are no data files of the table, with the reason, in the order given.

    With `unfinished` temporary names, which a listing showed, are data files too.
    """
    listed = list(paths)
    foreign = foreign_directories(storage, {path.rpartition("/")[0] for path in listed})
    refused = {}
    for path in listed:
        why = _refusal(path, written_by, unfinished) or foreign.get(path.rpartition("/")[0])
        if why is not None:
            refused[path] = why
    return refused


def check_partitions(storage: Storage, partitions: Iterable[str], source: str) -> None:
    """Raise CorruptTableError naming a partition of `source` that is not a plain path outside `.hoodie`."""
    for partition in partitions:
        why = _refused_folder(partition)
        if why is not None:
            raise CorruptTableError(
                f"{storage.root}: {source} names the partition {partition!r}, but {why}. The metadata is damaged or "
                "forged, so nothing of it is carried out.",
                path=partition,
            )


def check_instant(storage: Storage, requested: str, source: str) -> None:
    """Raise CorruptTableError if what `source` calls an instant is no time: names of files are made of it."""
    if not (requested.isascii() and requested.isdigit()):
        raise CorruptTableError(
            f"{storage.root}: {source} names the instant {requested!r}, which is no time of a timeline. The metadata "
            "is damaged or forged, so nothing of it is carried out.",
            instant=requested,
        )


def check_action(storage: Storage, action: str, source: str) -> None:
    """Raise CorruptTableError if what `source` calls an action is none."""
    if action not in tuple(Action):
        raise CorruptTableError(
            f"{storage.root}: {source} names the action {action!r}, which there is none of. The metadata is damaged or "
            "forged, so nothing of it is carried out.",
            action=action,
        )


def delete_leftovers(storage: Storage, paths: Iterable[str]) -> None:
    """Delete what writers left in `.hoodie`; raise CorruptTableError and delete nothing if a path is something else."""
    listed = list(paths)
    for path in listed:
        if not _is_leftover(path):
            raise CorruptTableError(
                f"{storage.root}: {path!r} is not a leftover of a write, so it is not deleted, and nothing else was",
                path=path,
            )
    storage.delete_many(listed)


def foreign_directories(storage: Storage, directories: Iterable[str]) -> dict[str, str]:
    """Return those directories of a local table that belong to something else, with the reason.

    A directory is foreign if it is reached through a symbolic link, or lies in a table of its own. On object stores
    there are no links, and listings show nested tables.
    """
    if not storage.root.startswith("/"):
        return {}
    return outside(storage.root, {directory for directory in directories if _refused_folder(directory) is None})


def linked_directories(storage: Storage, directories: Iterable[str]) -> dict[str, str]:
    """Return those directories of a local table that are reached through a symbolic link, with the reason."""
    return linked(storage.root, directories) if storage.root.startswith("/") else {}


def _refusal(path: str, written_by: str, unfinished: bool) -> str | None:
    partition, _, name = path.rpartition("/")
    folder = _refused_folder(partition)
    if folder is not None:
        return folder
    if is_data_file(name):
        bears = instant_of(name)
        if written_by and bears not in (None, written_by):
            return f"it was written by {bears}, and {written_by} is what is undone"
        return None
    if is_partition_metadata(name) or (unfinished and is_temporary(name)):
        return None
    return "this is not the name of a data file, a log file or partition metadata"


def _refused_folder(folder: str) -> str | None:
    if not folder:
        return None
    segments = folder.split("/")
    if "\0" in folder or any(segment in ("", ".", "..") for segment in segments):
        return "this is not a plain path relative to the table"
    if HOODIE in segments:
        return f"no data lies in {HOODIE}"
    return None


def _is_leftover(path: str) -> bool:
    segments = path.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return False
    return _LEFTOVERS.fullmatch(path) is not None or (segments[0] == HOODIE and is_temporary(path))
