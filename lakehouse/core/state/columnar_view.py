"""File system view on columns: the functions of `file_system_view` on Arrow tables of data files (TL-6.4).

`file_system_view` defines the rules on objects and is the reference of the property tests. The functions here give the
same slices with kernels: instants are replaced by their ranks, groups by numbers, and each log finds its base file by a
binary search over (group, instant).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.state.data_files import members, one_array
from lakehouse.core.state.file_slices import EMPTY, FileSlices
from lakehouse.core.state.file_system_view import Group, VisibleTimeline
from lakehouse.model.files import FileSlice

_Numbers = np.ndarray[Any, Any]

#: Per file: whether it is a log file whose name decides its slice.
_AFTER_SLICE = "after_slice"
#: Schema of the file names in commits: the files of (partition, file_id, instant) that are read.
NAMED = pa.schema([(name, pa.string()) for name in ("partition", "file_id", "instant", "name")])


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGroups:
    """All slices of all groups, ordered by group and newest first, with replaced groups.

    Attributes:
        slices: The slices.
        first: Whether each slice is the newest of its group.
        replaced: Whether the group of each slice is replaced.
        visible: The timeline that the query uses.
    """

    slices: FileSlices
    first: _Numbers
    replaced: _Numbers
    visible: VisibleTimeline

    def latest(self) -> FileSlices:
        """Return the newest slice of every group that is not replaced."""
        return self.slices.filter(self.first & ~self.replaced)

    def removable(self, also: Collection[Group]) -> dict[Group, tuple[FileSlice, ...]]:
        """Return, as objects, the groups with several slices, the replaced groups, and `also`.

        A clean keeps all other files.
        """
        starts = np.flatnonzero(self.first)
        sizes = np.diff(np.append(starts, len(self.first)))
        several = np.repeat(sizes > 1, sizes) if len(starts) else np.zeros(0, bool)
        keep = several | self.replaced | self.slices.is_in_groups(also)
        rest = self.slices.filter(keep)
        return SliceGroups(
            slices=rest, first=self.first[keep], replaced=self.replaced[keep], visible=self.visible
        ).by_group()

    def by_group(self) -> dict[Group, tuple[FileSlice, ...]]:
        """Return the slices as objects by group, for few files."""
        groups: dict[Group, list[FileSlice]] = {}
        for piece in self.slices:
            groups.setdefault((piece.partition, piece.file_id), []).append(piece)
        return {group: tuple(pieces) for group, pieces in groups.items()}


def latest_columns(
    files: pa.Table, visible: VisibleTimeline, *, layout: TableLayout, named: pa.Table | None = None
) -> FileSlices:
    """Return the newest slice of every file group that is not replaced, ordered by partition and file id.

    Args:
        files: Data files, see `lakehouse.core.state.data_files`.
        visible: The timeline that the query uses.
        layout: Layout of the timeline, 1 or 2.
        named: File names in commits, with the columns of `NAMED`. For an instant and group in it, only these files are
            read. This excludes duplicates of tasks that ran twice.
    """
    return all_columns(files, visible, layout=layout, named=named).latest()


def all_columns(
    files: pa.Table, visible: VisibleTimeline, *, layout: TableLayout, named: pa.Table | None = None
) -> SliceGroups:
    """Return all slices of all groups; see `all_slices` of `file_system_view` and `latest_columns`."""
    after_slice = named_after_slice(files, visible.compacting, layout=layout)
    read = _counts(files, visible, named, after_slice)
    if after_slice.any():
        files = files.append_column(_AFTER_SLICE, pa.array(after_slice))
    files = files if read.all() else files.filter(pa.array(read))
    if not files.num_rows:
        return SliceGroups(slices=EMPTY, first=np.zeros(0, bool), replaced=np.zeros(0, bool), visible=visible)
    files, group = _by_group(files)
    ranks = _Ranks(files, visible)
    if _AFTER_SLICE in files.column_names:
        files = files.drop_columns([_AFTER_SLICE])
    is_log = _flags(files.column("is_log"))
    bases = _newest_attempts(files, np.flatnonzero(~is_log), group, ranks)
    logs = np.flatnonzero(is_log)
    # Slice numbers: first the base files, then one slice without base file for each group that has older logs.
    base_keys = group[bases] * ranks.count + ranks.instant[bases]
    over = np.searchsorted(base_keys, group[logs] * ranks.count + ranks.position[logs], side="right") - 1
    has_base = over >= 0
    has_base[has_base] = group[bases][over[has_base]] == group[logs][has_base]
    older, slice_of_older = np.unique(group[logs][~has_base], return_inverse=True)
    slice_of_log = over.copy()
    slice_of_log[~has_base] = len(bases) + slice_of_older
    slice_group = np.concatenate((group[bases], older))
    # Newest first: a slice without base file is the oldest of its group.
    age = np.concatenate((-ranks.instant[bases] - 1, np.zeros(len(older), np.int64)))
    order = np.lexsort((age, slice_group))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = np.concatenate((bases, logs))
    slice_of_row = np.concatenate((place[: len(bases)], place[slice_of_log]))
    in_order = _merge_order(files, rows, slice_of_row, ranks)
    starts = np.concatenate(([0], np.cumsum(np.bincount(slice_of_row, minlength=len(order)))))
    placed = rows[in_order]
    # Copy only if needed: a copy of a large table's files takes as much memory again.
    same = len(placed) == files.num_rows and np.array_equal(placed, np.arange(len(placed)))
    slices = FileSlices(files if same else files.take(pa.array(placed)), starts.astype(np.int64))
    groups = slice_group[order]
    first = np.concatenate(([True], groups[1:] != groups[:-1]))
    return SliceGroups(slices=slices, first=first, replaced=_replaced(slices, visible), visible=visible)


def unplaced_instants(files: pa.Table, visible: VisibleTimeline, *, layout: TableLayout) -> frozenset[str]:
    """Return the archived instants whose completion time decides to which slice a log file belongs.

    See `unplaced` of `file_system_view`.
    """
    is_log = _flags(files.column("is_log"))
    if not layout.has_completion_times or not is_log.any():
        return frozenset()
    is_log &= ~named_after_slice(files, visible.compacting, layout=layout)
    logs, bases = files.filter(pa.array(is_log)), files.filter(pc.invert(files.column("is_log")))
    instants = one_array(logs.column("instant")).dictionary_encode()
    old = [i not in visible.instants and visible.shows(i) for i in instants.dictionary.to_pylist()]
    if not any(old) or not bases.num_rows:
        return frozenset()
    logs = logs.filter(pa.array(np.array(old)[instants.indices.to_numpy()]))
    columns = ["partition", "file_id", "instant"]
    newest = bases.select(columns).group_by(columns[:2]).aggregate([("instant", "max")])
    pairs = logs.select(columns).join(newest, columns[:2], join_type="inner")
    before = pc.less(pairs.column("instant"), pairs.column("instant_max"))
    return frozenset(pc.unique(pairs.column("instant").filter(before)).to_pylist())


def duplicate_instants(files: pa.Table, *, layout: TableLayout) -> frozenset[str]:
    """Return the instants at which several attempts of a task wrote to one file group; see `duplicates`."""
    if files.num_rows < 2 or _has_no_repeated_instant(files):
        return frozenset()  # Return early: the keys below need more memory than the rest of the view.
    after_slice = named_after_slice(files, (), layout=layout)
    if after_slice.any():
        files = files.filter(pa.array(~after_slice))
    keys = pc.binary_join_element_wise(*_texts(files, "partition", "file_id", "instant"), "\0")
    if pc.count_distinct(keys).as_py() == len(keys):
        return frozenset()
    order = pc.array_sort_indices(keys)
    ordered = keys.take(order)
    same = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False).astype(bool)
    if not same.any():
        return frozenset()
    # Only adjacent rows with the same key are compared further. If all rows of a key have equal tokens, the key is no
    # duplicate.
    tokens = one_array(files.column("write_token")).take(order)
    differ = same & pc.not_equal(tokens[1:], tokens[:-1]).to_numpy(zero_copy_only=False).astype(bool)
    rows = order.take(pa.array(np.flatnonzero(differ)))
    return frozenset(pc.unique(one_array(files.column("instant")).take(rows)).to_pylist())


def named_after_slice(files: pa.Table, compacting: Collection[str], *, layout: TableLayout) -> _Numbers:
    """Return the mask of the log files whose name decides their slice, see `file_system_view`.

    `compacting` are the requested times of compactions that the query does not see as completed.
    """
    is_log = _flags(files.column("is_log"))
    if not layout.has_completion_times or not is_log.any():
        return is_log
    logs, bases = files.filter(pa.array(is_log)), files.filter(pa.array(~is_log))
    instants = one_array(logs.column("instant"))
    # Few base files have the instant of a log file, so few keys are compared.
    bases = bases.filter(members(one_array(bases.column("instant")), pc.unique(instants)))
    columns = ("partition", "file_id", "instant")
    keys = [pc.binary_join_element_wise(*_texts(table, *columns), "\0") for table in (logs, bases)]
    after_slice = np.zeros(files.num_rows, bool)
    after_slice[is_log] = _flags(members(keys[0], keys[1])) | _flags(members(instants, sorted(compacting)))
    return after_slice


def _has_no_repeated_instant(files: pa.Table) -> bool:
    """Return whether no group has two files of one instant. Returns False if the files of a group are not adjacent.

    The files of a copy-on-write table are ordered by group if their listing is ordered by name.
    """
    group = _adjacent_groups(files)
    if group is None:
        return False
    again = np.flatnonzero(group[1:] == group[:-1])
    if not len(again):
        return True
    # Only groups with several files are compared, which are few in a usual copy-on-write table.
    rows = np.union1d(again, again + 1)
    instants = one_array(files.column("instant")).take(pa.array(rows)).dictionary_encode()
    keys = group[rows] * max(len(instants.dictionary), 1) + instants.indices.to_numpy()
    return len(np.unique(keys)) == len(keys)


def _adjacent_groups(files: pa.Table) -> _Numbers | None:
    """Return the group number of each file, or None if the files are not sorted by partition and file id."""
    changes = np.zeros(files.num_rows, bool)
    ordered = np.ones(max(files.num_rows - 1, 0), bool)
    for name in ("partition", "file_id"):
        column = one_array(files.column(name))
        before, after = column[:-1], column[1:]
        same = ~changes[1:]
        ordered &= ~same | _flags(pc.less_equal(before, after))
        changes[1:] |= _flags(pc.not_equal(before, after))
    return np.cumsum(changes) if ordered.all() else None


class _Ranks:
    """The instants of files as integers in the order of their times.

    Attributes:
        instant: Rank of the instant in the name, for each file.
        position: Rank of the time that decides the slice of a log: its completion time, or its instant if it is named
            after its slice.
        count: A number larger than all ranks.
    """

    def __init__(self, files: pa.Table, visible: VisibleTimeline) -> None:
        instants = one_array(files.column("instant")).dictionary_encode()
        texts: list[str] = instants.dictionary.to_pylist()
        completions = [visible.completion(text) for text in texts]
        rank = {text: number for number, text in enumerate(sorted({*texts, *completions}))}
        codes = instants.indices.to_numpy()
        self.count = len(rank) + 1
        self.instant: _Numbers = np.array([rank[text] for text in texts], np.int64)[codes]
        self.position: _Numbers = np.array([rank[text] for text in completions], np.int64)[codes]
        if _AFTER_SLICE in files.column_names:
            self.position = np.where(_flags(files.column(_AFTER_SLICE)), self.instant, self.position)


def _counts(files: pa.Table, visible: VisibleTimeline, named: pa.Table | None, after_slice: _Numbers) -> _Numbers:
    """Return whether a query reads each file."""
    instants = one_array(files.column("instant")).dictionary_encode()
    texts, codes = instants.dictionary.to_pylist(), instants.indices.to_numpy()
    shown = np.array([visible.shows(text) for text in texts], bool)
    read = shown[codes] if len(texts) else np.zeros(0, bool)
    if visible.compacting and len(texts):
        # The name contains the instant of a completed or pending base file, and each block has its own instant, so the
        # file is read.
        compacting = np.array([text in visible.compacting for text in texts], bool)
        read = read | (after_slice & compacting[codes])
    read = read & _flags(pc.equal(files.column("suffix"), ""))
    if named is None or not named.num_rows:
        return read
    keys = pc.binary_join_element_wise(*_texts(files, "partition", "file_id", "instant"), "\0")
    names = pc.binary_join_element_wise(keys, one_array(files.column("name")), "\0")
    named_keys = pc.binary_join_element_wise(*_texts(named, "partition", "file_id", "instant"), "\0")
    named_names = pc.binary_join_element_wise(named_keys, one_array(named.column("name")), "\0")
    in_commit = _flags(members(names, named_names)) | ~_flags(members(keys, named_keys))
    return read & (in_commit | after_slice)


def _by_group(files: pa.Table) -> tuple[pa.Table, _Numbers]:
    """Return the files ordered by partition and file id, and the group number for each."""
    group = _adjacent_groups(files)
    if group is not None:
        return files.combine_chunks(), group
    keys = pc.binary_join_element_wise(*_texts(files, "partition", "file_id"), "\0")
    order = pc.array_sort_indices(keys)
    files, keys = files.take(order), keys.take(order)
    group = np.zeros(len(keys), np.int64)
    group[1:] = np.cumsum(_flags(pc.not_equal(keys[1:], keys[:-1])))
    return files.combine_chunks(), group


def _newest_attempts(files: pa.Table, bases: _Numbers, group: _Numbers, ranks: _Ranks) -> _Numbers:
    """Return, for each (group, instant), the row of the base file with the maximum write token."""
    keys = group[bases] * ranks.count + ranks.instant[bases]
    order = np.argsort(keys, kind="stable")
    bases, keys = bases[order], keys[order]
    same = np.flatnonzero(keys[1:] == keys[:-1])
    if not len(same):
        return bases
    tokens = one_array(files.column("write_token"))
    repeated = np.unique(np.concatenate((same, same + 1)))
    rank = np.zeros(len(bases), np.int64)
    rank[repeated] = _text_ranks(tokens.take(pa.array(bases[repeated])))
    # The last row of each key is used: the maximum token, and among equal tokens the first file.
    last = np.lexsort((-np.arange(len(bases)), rank, keys))
    bases, keys = bases[last], keys[last]
    return bases[np.concatenate((keys[1:] != keys[:-1], [True]))]


def _merge_order(files: pa.Table, rows: _Numbers, slice_of_row: _Numbers, ranks: _Ranks) -> _Numbers:
    """Return the order by slice, base first, then logs by (instant in the name, version, write token, suffix)."""
    taken = files.select(["version", "write_token"]).take(pa.array(rows))
    is_log = _flags(one_array(files.column("is_log")).take(pa.array(rows)))
    if not is_log.any():
        return np.argsort(slice_of_row, kind="stable")
    version = one_array(taken.column("version")).to_numpy()
    instant = np.where(is_log, ranks.instant[rows], -1)
    token = _text_ranks(one_array(taken.column("write_token")))
    return np.lexsort((token, version, instant, slice_of_row))


def _replaced(slices: FileSlices, visible: VisibleTimeline) -> _Numbers:
    if not visible.replaced or not len(slices):
        return np.zeros(len(slices), bool)
    groups = pa.array([f"{partition}\0{file_id}" for partition, file_id in visible.replaced], pa.string())
    keys = pc.binary_join_element_wise(slices.partitions, slices.file_ids, "\0")
    return _flags(members(keys, groups))


def _text_ranks(texts: pa.Array) -> _Numbers:
    encoded = texts.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    ranks: _Numbers = rank[encoded.indices.to_numpy()]
    return ranks


def _texts(table: pa.Table, *names: str) -> list[pa.Array]:
    return [one_array(table.column(name)) for name in names]


def _flags(column: pa.Array | pa.ChunkedArray) -> _Numbers:
    flags: _Numbers = one_array(column).to_numpy(zero_copy_only=False).astype(bool)
    return flags
