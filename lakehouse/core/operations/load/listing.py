"""List the data files of a table, without files of tables that are nested in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.partitions import PartitionFilter
from lakehouse.core.state.data_files import data_files, file_paths, listing_of
from lakehouse.core.state.file_system_view import DataFile
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.nested_tables import HOODIE, nested_tables, without
from lakehouse.core.storage.protocol import FileInfo, Level, Storage
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.files import BaseFile

logger = logging.getLogger(__name__)

_LISTERS = 8


def list_base_files(table: LoadedTable, partitions: Iterable[str] | None = None) -> list[BaseFile]:
    """Return all base files of some partitions, or of the whole table, committed or not."""
    return [file for file in list_data_files(table, partitions) if isinstance(file, BaseFile)]


def list_data_files(
    table: LoadedTable,
    partitions: Iterable[str] | None = None,
    *,
    keep: Callable[[str], bool] | None = None,
    change_logs: bool = False,
) -> list[DataFile]:
    """Return the base and log files of some partitions, committed or not.

    Args:
        table: The loaded table.
        partitions: Partition paths; None lists the whole table.
        keep: Returns whether a directory is listed. It gets paths relative to the table, such as "region=eu" and then
            "region=eu/day=2026-01-31": the table is listed level by level, and a directory that `keep` rejects is not
            entered. With `partitions` it is called with these paths only.
        change_logs: Include the files of change logs (`.cdc`), which belong to no file slice.
    """
    files = list_files(table, partitions, keep)
    return [data for file in files if (data := parse_data_file(table, file, change_logs)) is not None]


def list_columns(
    table: LoadedTable, partitions: Iterable[str] | None = None, keep: Callable[[str], bool] | None = None
) -> pa.Table:
    """Return the files below the partitions as a table of partition, name and size; see `list_data_files`."""
    files = list_files(table, partitions, keep)
    return listing_of([file.path for file in files], [file.size_bytes for file in files])


def supported_data_files(table: LoadedTable, listing: pa.Table) -> pa.Table:
    """Return the base files, log files and change logs of a listing as columns (see `core.state.data_files`).

    Raises CorruptTableError for a log file in a copy-on-write table, UnsupportedError for another base file format.
    """
    files = data_files(listing)
    root = table.env.storage.root
    if table.config.table_type == "COPY_ON_WRITE":
        logs = files.filter(pc.and_(files.column("is_log"), pc.equal(files.column("suffix"), "")))
        if logs.num_rows:
            raise CorruptTableError(f"{root}: log file {file_paths(logs)[0]} in a copy-on-write table")
    is_other = pc.and_(pc.invert(files.column("is_log")), pc.not_equal(files.column("extension"), "parquet"))
    others = files.filter(is_other)
    if others.num_rows:
        extension = others.column("extension")[0]
        raise UnsupportedError(f"{root}/{file_paths(others)[0]}: base files of format {extension} are not supported")
    return files


def list_files(
    table: LoadedTable, partitions: Iterable[str] | None, keep: Callable[[str], bool] | None
) -> list[FileInfo]:
    """Return all files below the partitions, data files or not; see `list_data_files` for the arguments."""
    storage = table.env.storage
    if partitions is not None:
        wanted = [partition for partition in partitions if keep is None or keep(partition)]
        listings = dict(zip(wanted, send_all(storage, storage.list_dir, wanted), strict=True))
        return [file for files, _ in _without_nested(storage, listings).values() for file in files]
    with ThreadPoolExecutor(_LISTERS) as pool:
        if keep is not None:
            files_listed = _list_by_level(storage, pool, keep)
            if isinstance(keep, PartitionFilter):
                files_listed = _of_partitions(files_listed, keep)
        else:
            files_listed, directories = storage.list_dir("")
            below = pool.map(storage.list, _partition_roots(directories))
            files_listed = own_files(storage, files_listed + [file for listing in below for file in listing])
    return files_listed


def own_files(storage: Storage, files: list[FileInfo]) -> list[FileInfo]:
    """Return the files of a recursive listing, without files of other tables in the table's folder."""
    nested = nested_tables(files)
    for directory in nested:
        _warn_skipped(storage, directory)
    return without(files, nested) if nested else files


def _without_nested(storage: Storage, listings: Mapping[str, Level]) -> dict[str, Level]:
    """Return listings by directory, without directories that are other tables."""
    for directory, (_, names) in listings.items():
        if directory and HOODIE in names:
            _warn_skipped(storage, directory)
    return {directory: level for directory, level in listings.items() if not directory or HOODIE not in level[1]}


def _warn_skipped(storage: Storage, directory: str) -> None:
    logger.warning("%s: %s is another table; its files are skipped", storage.root, directory)


def _list_by_level(storage: Storage, pool: ThreadPoolExecutor, keep: Callable[[str], bool]) -> list[FileInfo]:
    computed = keep.computed() if isinstance(keep, PartitionFilter) else None
    files: list[FileInfo] = []
    if computed is None:
        files, directories = storage.list_dir("")
        level = _kept(_partition_roots(directories), keep)
    else:
        # The condition determines the directory names, so the parent directory is not listed.
        level = list(computed)
    while level:
        listings = _without_nested(storage, dict(zip(level, pool.map(storage.list_dir, level), strict=True)))
        files = files + [file for listed, _ in listings.values() for file in listed]
        below = [f"{parent}/{name}" for parent, (_, names) in listings.items() for name in names]
        level = _kept(below, keep)
    return files


def _kept(paths: list[str], keep: Callable[[str], bool]) -> list[str]:
    if not isinstance(keep, PartitionFilter):
        return [path for path in paths if keep(path)]
    return [path for path, is_selected in zip(paths, keep.directories(paths).tolist(), strict=True) if is_selected]


def _of_partitions(files: list[FileInfo], keep: PartitionFilter) -> list[FileInfo]:
    """Return the files in partitions that may have matching rows.

    Some directories are listed only for the partitions below them.
    """
    partitions = sorted({file.path.rpartition("/")[0] for file in files})
    covered = dict(zip(partitions, keep.select(pa.array(partitions, pa.string())).tolist(), strict=True))
    return [file for file in files if covered[file.path.rpartition("/")[0]]]


def _partition_roots(directories: Iterable[str]) -> list[str]:
    # Any other name can be a partition; even the default partition for null values begins with an underscore.
    return [name for name in directories if name != HOODIE]


def parse_data_file(table: LoadedTable, file: FileInfo, change_logs: bool) -> DataFile | None:
    """Parse a listed file as base file, log file or (with `change_logs`) change log; None for others.

    Raises CorruptTableError for a log file in a copy-on-write table, UnsupportedError for another base file format.
    """
    partition, _, name = file.path.rpartition("/")
    base = parse_base_file(name, partition, file.size_bytes)
    if base is None:
        log = parse_log_file(name, partition, file.size_bytes)
        if log is not None and table.config.table_type == "COPY_ON_WRITE":
            raise CorruptTableError(f"{table.env.storage.root}: log file {file.path} in a copy-on-write table")
        return parse_cdc_file(name, partition, file.size_bytes) if log is None and change_logs else log
    if base.extension != "parquet":
        raise UnsupportedError(
            f"{table.env.storage.root}/{file.path}: base files of format {base.extension} are not supported"
        )
    return base
