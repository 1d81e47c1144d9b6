"""Find the roots of tables below a place: list folders level by level, and stop at the root of a table.

    .hoodie                          Hudi
    _delta_log                       Delta
    metadata/*.metadata.json         Iceberg
    *.parquet                        plain Parquet
    a=1/b=2/*.parquet, 2026/01/31/   partitioned Parquet: one branch is listed down to its files

Names that begin with `_` or `.` are hidden, as in Hive. A folder that cannot be listed does not end the scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from lakehouse.core.engine.progress import ProgressObserver, Stage, observed_stage
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import FileInfo, Level, Storage
from lakehouse.errors import LakehouseError
from lakehouse.spec.contracts.fleet_scan import TableKind

#: Default for the maximum number of levels below the place.
DEPTH = 12
_HOODIE, _DELTA, _ICEBERG = ".hoodie", "_delta_log", "metadata"
_ICEBERG_METADATA = ".metadata.json"
_PARQUET = (".parquet", ".parq")
_HIVE = re.compile(r"([^=/]+)=[^/]*")
#: Folder names of days and their parts, such as 2026, 01, 2026-01-31 and 20260131.
_DATE = re.compile(r"\d{1,2}|\d{4}|\d{4}-?\d\d(-?\d\d)?")
#: Folders listed at the same time between two reports of the progress.
_BATCH = 64
#: Maximum number of partition levels, and branches that are tried to find a file.
_LEVELS, _BRANCHES = 16, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The root of a table.

    Attributes:
        path: Path relative to the place that was scanned; empty if the place itself is the table.
        kind: Format of the table.
        folders: Visible folders one level below the root.
        columns: Partition columns of a Parquet folder. The levels of date folders have empty names.
        files: Parquet files in the root itself.
        problem: Why the folder cannot be listed; empty otherwise.
    """

    path: str
    kind: TableKind
    folders: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    files: tuple[FileInfo, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The tables below a place, sorted by path.

    `folders` is the number of folders that were listed. `others` are folders with files of no table. `cut` are the
    folders below which the scan did not descend, because of the maximum depth.
    """

    places: tuple[Place, ...] = ()
    folders: int = 0
    others: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


def discover(storage: Storage, *, depth: int = DEPTH) -> Discovery:
    """Find the roots of tables at the root of a storage and up to `depth` levels below it."""
    walk = _Walk(storage=storage)
    level = [""]
    for below in range(depth + 1):
        children = [child for path, listed in walk.listed(level, below) for child in walk.visit(path, listed)]
        level = children
        if not level:
            break
    return Discovery(
        places=tuple(sorted(walk.places, key=lambda place: place.path)),
        folders=walk.folders,
        others=tuple(sorted(walk.others)),
        cut=tuple(sorted(level)),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The state of a walk through the folders of a storage."""

    storage: Storage
    places: list[Place] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    folders: int = 0

    def listed(self, paths: Sequence[str], below: int) -> Iterator[tuple[str, Level | LakehouseError]]:
        """Yield each path with its listing, or with the error of it."""
        stage = Stage(name=f"scan of level {below}", table=self.storage.root, unit="folder", total=len(paths))
        with observed_stage(stage) as running:
            for batch in (paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)):
                levels = send_all(self.storage, self._list, batch)
                running.report(partial(_advance, stage, len(batch)))
                self.folders += len(batch)
                yield from zip(batch, levels, strict=True)

    def visit(self, path: str, listed: Level | LakehouseError) -> tuple[str, ...]:
        """Record the table whose root is a folder; if it is none, return the folders to visit next."""
        if isinstance(listed, LakehouseError):
            self.places.append(Place(path=path, kind=TableKind.UNREADABLE, problem=listed.message))
            return ()
        files, directories = listed
        visible = tuple(name for name in directories if not _is_hidden(name))
        kind = self._marked(path, directories)
        data = _parquet(files)
        if kind is None and data:
            kind = TableKind.PARQUET
        if kind is not None:
            self.places.append(Place(path=path, kind=kind, folders=visible, files=tuple(data)))
            return ()
        columns = self._partitioned(path, visible)
        if columns is not None:
            self.places.append(Place(path=path, kind=TableKind.PARQUET, folders=visible, columns=columns))
            return ()
        if any(not _is_hidden(file.name) for file in files):
            self.others.append(path)
        return tuple(_below(path, name) for name in visible)

    def _list(self, path: str) -> Level | LakehouseError:
        try:
            return self.storage.list_dir(path)
        except LakehouseError as error:
            return error

    def _marked(self, path: str, directories: Sequence[str]) -> TableKind | None:
        """Return the format whose metadata folder is in a folder."""
        if _HOODIE in directories:
            return TableKind.HUDI
        if _DELTA in directories:
            return TableKind.DELTA
        if _ICEBERG in directories:
            listed = self._list(_below(path, _ICEBERG))
            self.folders += 1
            if not isinstance(listed, LakehouseError) and any(f.name.endswith(_ICEBERG_METADATA) for f in listed[0]):
                return TableKind.ICEBERG
        return None

    def _partitioned(self, path: str, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the partition columns of a folder with partitioned Parquet files; None if it is none.

        The newest branch is listed first, because an old one may have been emptied.
        """
        column = _partition_column(names)
        if column is None:
            return None
        for name in (*names[-1:-_BRANCHES:-1], names[0]):
            columns = self._branch(_below(path, name))
            if columns is not None:
                return (column, *columns)
        return None

    def _branch(self, path: str) -> tuple[str, ...] | None:
        """Return the partition columns below a partition, whose last branch is followed to its files."""
        columns: list[str] = []
        while len(columns) < _LEVELS:
            listed = self._list(path)
            self.folders += 1
            if isinstance(listed, LakehouseError) or self._marked(path, listed[1]) is not None:
                return None
            if _parquet(listed[0]):
                return tuple(columns)
            names = [name for name in listed[1] if not _is_hidden(name)]
            column = _partition_column(names)
            if column is None:
                return None
            columns.append(column)
            path = _below(path, names[-1])
        return None


def _partition_column(names: Sequence[str]) -> str | None:
    """Return the column of which all names are values; empty for date folders, None if they are no partitions."""
    if not names:
        return None
    columns = {match[1] if (match := _HIVE.fullmatch(name)) else None for name in names}
    if len(columns) == 1 and None not in columns:
        return columns.pop()
    return "" if all(_DATE.fullmatch(name) for name in names) else None


def _parquet(files: Sequence[FileInfo]) -> list[FileInfo]:
    return [file for file in files if not _is_hidden(file.name) and file.name.endswith(_PARQUET)]


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _advance(stage: Stage, units: int, observer: ProgressObserver) -> None:
    observer.advanced(stage, units, 0)
