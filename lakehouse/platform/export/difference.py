"""The base files that a view has to add and to remove: from the commits since its mark, or from a listing.

    newest base file of a group = the one with the largest instant, of the files in the view and in the commits
    hidden                      = groups that a replacecommit of the active timeline replaced

Only the groups of the commits are compared, so nothing is listed and other groups cost no request. A listing is
compared if the mark of the view cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.operations.load.slices import load_listing, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.data_files import DATA_FILES, data_files, file_paths, listing_of, members, one_array
from lakehouse.model.instant import Instant

_GROUP = ("partition", "file_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDifference:
    """The files to add, as columns of `data_files`, and the paths to remove. All paths are relative to the table.

    `is_full` is whether the view was compared with a listing of the whole table.
    """

    added: pa.Table
    removed: tuple[str, ...]
    is_full: bool = False

    @property
    def added_paths(self) -> list[str]:
        """The paths of the files to add."""
        return file_paths(self.added).to_pylist() if self.added.num_rows else []

    @property
    def added_sizes(self) -> list[int]:
        """The sizes of the files to add, in bytes."""
        sizes: list[int] = self.added.column("size_bytes").to_pylist()
        return sizes

    @property
    def is_empty(self) -> bool:
        """Whether the view has the files already."""
        return not self.added.num_rows and not self.removed


def difference_of_writes(
    table: LoadedTable, writes: tuple[Instant, ...], exported_paths: Callable[[pa.Table], pa.Array]
) -> FileDifference:
    """Return the difference between a view and the table after `writes`.

    `exported_paths` returns the paths in the view of some file groups, and possibly of others. It gets a table with the
    columns `partition` and `file_id`.
    """
    if not writes:
        return FileDifference(added=DATA_FILES.empty_table(), removed=())
    written = table.store.files(writes)
    parsed = _base_files(listing_of(written.column("path").to_pylist(), written.column("size_bytes").to_pylist()))
    replaced = [
        (partition, file_id)
        for _, metadata in table.store.summaries(writes)
        for partition, ids in metadata.replaced.items()
        for file_id in ids
    ]
    by_name = dict(zip(_GROUP, zip(*replaced, strict=True), strict=True)) if replaced else dict.fromkeys(_GROUP, ())
    groups = pa.concat_tables([parsed.select(_GROUP), pa.table(by_name, schema=parsed.select(_GROUP).schema)])
    touched = pc.unique(_groups(groups))
    exported = exported_paths(groups)
    before = _base_files(listing_of(exported, np.zeros(len(exported), np.int64)))
    before = before.filter(members(_groups(before), touched))
    hidden = [f"{partition}\0{file_id}" for partition, file_id in load_visible(table).replaced]
    now = parsed.filter(pc.invert(members(_groups(parsed), pa.array(hidden, pa.string()))))
    stays = before.filter(pc.invert(members(_groups(before), pa.array(hidden, pa.string()))))
    newest = _newest(pa.concat_tables([stays, now]).combine_chunks())
    return _compare(before, newest, is_full=False)


def difference_of_listing(table: LoadedTable, exported: pa.Array) -> FileDifference:
    """Return the difference between a view with the paths `exported` and the newest base files of the whole table."""
    slices = load_listing(table).slices
    newest = slices.base_only().files
    paths = _paths(newest)
    removed = exported.filter(pc.invert(members(exported, paths)))
    added = newest.filter(pc.invert(members(paths, exported)))
    return FileDifference(added=added, removed=tuple(removed.to_pylist()), is_full=True)


def all_files(table: LoadedTable, exported: pa.Array) -> FileDifference:
    """Return a difference that replaces all files of a view, for a view with another schema or other partitions."""
    newest = load_listing(table).slices.base_only().files
    removed = exported.filter(pc.invert(members(exported, _paths(newest))))
    return FileDifference(added=newest, removed=tuple(removed.to_pylist()), is_full=True)


def _base_files(listing: pa.Table) -> pa.Table:
    files = data_files(listing)
    return files.filter(pc.invert(files.column("is_log")))


def _groups(files: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(*(one_array(files.column(name)) for name in _GROUP), "\0")


def _paths(files: pa.Table) -> pa.Array:
    return file_paths(files) if files.num_rows else pa.array([], pa.string())


def _newest(files: pa.Table) -> pa.Table:
    """Return the file with the largest instant of each group; of attempts of one task the committed one stays."""
    if not files.num_rows:
        return files
    order = pc.sort_indices(
        pa.table({"group": _groups(files), "instant": files.column("instant")}),
        sort_keys=[("group", "ascending"), ("instant", "ascending")],
    )
    ordered = files.take(order)
    group = _groups(ordered)
    is_last = np.ones(len(group), bool)
    is_last[:-1] = pc.not_equal(group[1:], group[:-1]).to_numpy(zero_copy_only=False)
    return ordered.filter(pa.array(is_last))


def _compare(before: pa.Table, newest: pa.Table, *, is_full: bool) -> FileDifference:
    old, new = _paths(before), _paths(newest)
    removed = old.filter(pc.invert(members(old, new)))
    added = newest.filter(pc.invert(members(new, old)))
    return FileDifference(added=added, removed=tuple(removed.to_pylist()), is_full=is_full)
