"""Delete files whose names come from metadata (markers, plans, publication state, listings), after checking each name.

    data files       relative, normalised path outside `.hoodie`; name of a base file, log file, change log or partition
                     metadata; not in a nested table and not reached through a symbolic link
    leftover files   inside `.hoodie`, in a folder that contains only temporary files of writers

A whole plan is checked before its first file is deleted; a plan with one refused name deletes nothing. Metadata may be
damaged, or written by a party that must not reach files outside of its table. An architecture test lists the modules
that may call the delete functions of storage directly, each with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from lakehouse.core.format.file_names import instant_of, is_data_file, is_partition_metadata
from lakehouse.core.storage.local_links import linked, outside
from lakehouse.core.storage.nested_tables import HOODIE
from lakehouse.core.storage.protocol import Storage, is_temporary
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Action

#: Pattern for paths of leftover files from one instant or from a dropped metadata table, and a name part that only log
#: files have.
LOG_INFIX = ".log."
_LEFTOVERS = re.compile(
    r"\.hoodie/(?:"
    r"(?:\.temp|\.staging)/\d+/.+"
    r"|\.staging/frames/[0-9a-z-]+/[^/]+"
    r"|\.heartbeat/\d+"
    r"|\.aux/\.lakehouse_bootstrap/\d+\.json"
    r"|\.schema/\d+(?:_\d+)?\.schemacommit"
    r"|\.tombstones/\d+_\d+_[0-9a-z-]+\.parquet"
    r"|\.bucket_index/partition_bucket_index_meta/configs/\d+\.hashing_config"
    r"|\.bucket_index/consistent_hashing_metadata/(?:[^/]+/)*\d+\.(?:hashing_meta|commit)"
    r"|metadata/.+"
    r"|hoodie\.properties\.backup"
    r"|next_writer\.json"
    r")",
    re.ASCII,
)


def check_data_files(
    storage: Storage, paths: Iterable[str], source: str, *, written_by: Collection[str] = (), unfinished: bool = False
) -> None:
    """Raise CorruptTableError if `source` lists anything but data files of the table for deletion.

    With `written_by` all base and log files must have the first of these instants in their names: a rollback deletes
    only files of the write that it rolls back. Names of log files may also contain instants of resizes for which the
    write copied rows. With `unfinished` temporary names from a listing are accepted as well.
    """
    refused = refused_data_files(storage, paths, written_by=written_by, unfinished=unfinished)
    if not refused:
        return
    path, why = next(iter(refused.items()))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    raise CorruptTableError(
        f"{storage.root}: {source} names {path!r}{more} for deletion, but {why}. The metadata is damaged or forged, so "
        "nothing was deleted. Find out which process wrote it; then remove it, or delete the files by hand.",
        path=path,
        refused=sorted(refused),
    )


def delete_data_files(
    storage: Storage, paths: Sequence[str], source: str, *, written_by: Collection[str] = (), unfinished: bool = False
) -> None:
    """Delete the data files that `source` lists.

    Raise CorruptTableError, and delete nothing, if one name is refused.
    """
    check_data_files(storage, paths, source, written_by=written_by, unfinished=unfinished)
    storage.delete_many(paths)


def refused_data_files(
    storage: Storage, paths: Iterable[str], *, written_by: Collection[str] = (), unfinished: bool = False
) -> dict[str, str]:
    """Return the paths that are not data files of the table, each with the reason, in the order of `paths`.

    See `check_data_files` for the arguments.
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
    """Raise CorruptTableError with the partition if a partition of `source` is not a plain path outside `.hoodie`."""
    for partition in partitions:
        why = _refused_folder(partition)
        if why is not None:
            raise CorruptTableError(
                f"{storage.root}: {source} names the partition {partition!r}, but {why}. The metadata is damaged or "
                "forged, so it is not executed.",
                path=partition,
            )


def check_instant(storage: Storage, requested: str, source: str) -> None:
    """Raise CorruptTableError if an instant of `source` is not a time, because file names are built from it."""
    if not (requested.isascii() and requested.isdigit()):
        raise CorruptTableError(
            f"{storage.root}: {source} names the instant {requested!r}, which is not an instant time. The metadata "
            "is damaged or forged, so it is not executed.",
            instant=requested,
        )


def check_action(storage: Storage, action: str, source: str) -> None:
    """Raise CorruptTableError if an action of `source` does not exist."""
    if action not in tuple(Action):
        raise CorruptTableError(
            f"{storage.root}: {source} names the action {action!r}, which does not exist. The metadata is damaged or "
            "forged, so it is not executed.",
            action=action,
        )


def delete_leftovers(storage: Storage, paths: Iterable[str]) -> None:
    """Delete leftover files in `.hoodie`; raise CorruptTableError and delete nothing if a path is another file."""
    listed = list(paths)
    for path in listed:
        if not _is_leftover(path):
            raise CorruptTableError(
                f"{storage.root}: {path!r} is not a leftover file of a write; nothing was deleted",
                path=path,
            )
    storage.delete_many(listed)


def foreign_directories(storage: Storage, directories: Iterable[str]) -> dict[str, str]:
    """Return the directories of a local table that do not belong to it, each with the reason.

    These are directories reached through a symbolic link and directories of a nested table. Object stores have no
    links, and their listings show nested tables.
    """
    if not storage.root.startswith("/"):
        return {}
    return outside(storage.root, {directory for directory in directories if _refused_folder(directory) is None})


def linked_directories(storage: Storage, directories: Iterable[str]) -> dict[str, str]:
    """Return the directories of a local table that are reached through a symbolic link, each with the reason."""
    return linked(storage.root, directories) if storage.root.startswith("/") else {}


def _refusal(path: str, written_by: Collection[str], unfinished: bool) -> str | None:
    partition, _, name = path.rpartition("/")
    folder = _refused_folder(partition)
    if folder is not None:
        return folder
    if is_data_file(name):
        instant = instant_of(name)
        writer = next(iter(written_by), None)
        is_copy = instant in written_by and LOG_INFIX in name
        if writer is not None and instant not in (None, writer) and not is_copy:
            return f"it was written by {instant}, not by {writer}, which is rolled back"
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
        return f"{HOODIE} contains no data files"
    return None


def _is_leftover(path: str) -> bool:
    segments = path.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return False
    return _LEFTOVERS.fullmatch(path) is not None or (segments[0] == HOODIE and is_temporary(path))
