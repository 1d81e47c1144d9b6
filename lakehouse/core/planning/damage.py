"""Find damaged files: committed files that are missing in a listing or have another size.

A commit lists each file that it wrote, with its size. If a file of a newest slice is not on storage or has another
size, it was lost or damaged after the commit, and a reader would silently return older rows. Older slices are not
compared, because cleans delete their files.

    layout 2   sizes are equal
    layout 1   a log may be longer than recorded: later commits and rollbacks append to it

Log files with names of version 6 in layout 2 are compared as in layout 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.file_names import instant_of, parse_base_file, parse_log_file
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.planning.undone_copies import is_undone_copy
from lakehouse.core.state.data_files import file_paths, members, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group, VisibleTimeline
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damaged file of a newest slice; sizes are in bytes, `actual` is None if the file is missing."""

    partition: str
    path: str
    instant: str
    action: str
    expected: int
    actual: int | None
    is_log: bool

    @property
    def problem(self) -> str:
        """The damage as a sentence for messages."""
        state = "is missing" if self.actual is None else f"has {self.actual} bytes"
        return f"{self.path} {state}; the {self.action} {self.instant} wrote it with {self.expected} bytes"


# parameters: the two sides of a comparison: commits, and the parts of a listing
def find_damage(
    commits: Iterable[tuple[Instant, CommitMetadata]],
    slices: Iterable[FileSlice],
    files: pa.Table,
    visible: VisibleTimeline,
    *,
    layout: TableLayout,
    covered: Callable[[Iterable[str]], Collection[str]],
    upgraded: bool = False,
) -> tuple[Damage, ...]:
    """Return the files of newest slices that are missing or do not have the size that their commit recorded.

    Args:
        commits: Completed writes with metadata. Invisible and archived ones are ignored.
        slices: The newest slices of a listing.
        files: The listed files, see `core.state.data_files`.
        visible: The file system view of the query. File groups that it shows as replaced are ignored.
        layout: Layout of the timeline, 1 or 2.
        covered: Returns the partitions that the listing covers.
        upgraded: The table may have log files with names of version 6.
    """
    suspects, sizes = _suspects(commits, files, visible, covered)
    # Logs that are named after a bucket resize are read only if the resize is completed.
    names = [instant_of(stat.path.rpartition("/")[2]) or "" for _, stat in suspects]
    is_read = [visible.shows(name) or name in visible.compacting for name in names]
    suspects = [pair for pair, read in zip(suspects, is_read, strict=True) if read]
    if not upgraded:
        groups = _groups_of(files, suspects)
        suspects = [pair for pair in suspects if not is_undone_copy(*pair, visible.instants, groups)]
    suspected = {(stat.partition, stat.file_id) for _, stat in suspects} - visible.replaced.keys()
    if not suspected:
        return ()
    newest = _newest_bases(slices, suspected, (stat for _, stat in suspects))
    may_grow = upgraded or layout.appends_to_logs
    damages = [
        damage
        for instant, stat in suspects
        if (group := (stat.partition, stat.file_id)) in suspected
        and (damage := _damage(instant, stat, sizes, newest.get(group, ""), visible, may_grow)) is not None
    ]
    return tuple(sorted(damages, key=lambda damage: (damage.instant, damage.path)))


def _newest_bases(
    slices: Iterable[FileSlice], groups: Collection[Group], missing: Iterable[WriteStat]
) -> dict[Group, str]:
    """Return by file group the instant of its newest base file, whether it is listed or missing."""
    newest: dict[Group, str] = {}
    columns = FileSlices.of(slices)
    file_ids = pa.array([file_id for _, file_id in groups], pa.string())
    for file_slice in columns.filter(members(columns.file_ids, file_ids)):
        if file_slice.base is not None and (group := (file_slice.partition, file_slice.file_id)) in groups:
            newest[group] = file_slice.base_instant
    for stat in missing:
        base = parse_base_file(stat.path.rpartition("/")[2], stat.partition, 0)
        if base is not None:
            group = (stat.partition, stat.file_id)
            newest[group] = max(base.instant, newest.get(group, ""))
    return newest


def _groups_of(files: pa.Table, suspects: Collection[tuple[Instant, WriteStat]]) -> frozenset[Group]:
    """Return the file groups of missing files that have listed files."""
    if not suspects:
        return frozenset()
    partitions, file_ids = {stat.partition for _, stat in suspects}, {stat.file_id for _, stat in suspects}
    near = files.filter(members(one_array(files.column("partition")), sorted(partitions)))
    listed = pc.replace_substring_regex(one_array(near.column("name")), r"^\.?([^_]*)_.*$", r"\1")
    is_listed = members(listed, sorted(file_ids))
    places = one_array(near.column("partition")).filter(is_listed).to_pylist()
    return frozenset(zip(places, listed.filter(is_listed).to_pylist(), strict=True))


def _suspects(
    commits: Iterable[tuple[Instant, CommitMetadata]],
    files: pa.Table,
    visible: VisibleTimeline,
    covered: Callable[[Iterable[str]], Collection[str]],
) -> tuple[list[tuple[Instant, WriteStat]], dict[str, int]]:
    """Return the stats that match no listed file, and the sizes of listed files with the same names."""
    compared = [
        (instant, metadata)
        for instant, metadata in commits
        if instant.requested in visible.instants and instant.requested >= visible.archived_before
    ]
    listed = covered({stat.partition for _, metadata in compared for stat in metadata.stats})
    stats = [
        (instant, stat)
        for instant, metadata in compared
        for stat in metadata.stats
        if stat.path and stat.partition in listed
    ]
    if not stats:
        return [], {}
    # Nearly all files match, so this comparison is enough for their stats.
    paths = pa.array([stat.path for _, stat in stats], pa.string())
    names = pa.array([stat.path.rpartition("/")[2] for _, stat in stats], pa.string())
    named = files.filter(members(one_array(files.column("name")), names))
    actual = one_array(named.column("size_bytes")).take(pc.index_in(paths, value_set=file_paths(named)))
    equal = pc.equal(actual, pa.array([stat.size_bytes for _, stat in stats], pa.int64())).fill_null(False)
    numbers = pc.indices_nonzero(pc.invert(equal)).to_pylist()
    sizes = {stats[number][1].path: actual[number].as_py() for number in numbers if actual[number].is_valid}
    return [stats[number] for number in numbers], sizes


# parameters: one file of a commit, and the listing that it is compared with
def _damage(
    instant: Instant, stat: WriteStat, sizes: Mapping[str, int], start: str, visible: VisibleTimeline, may_grow: bool
) -> Damage | None:
    """Return the damage of a file if it belongs to the newest slice of its group, which starts at `start`."""
    name = stat.path.rpartition("/")[2]
    if parse_base_file(name, stat.partition, 0) is not None:
        belongs, is_log = instant.requested >= start, False
    else:
        log = parse_log_file(name, stat.partition, 0)
        if log is None:
            return None
        # A log file whose name does not contain the instant of its commit is named after its slice.
        at = visible.completion(log.instant) if log.instant == instant.requested else log.instant
        belongs, is_log = start <= at, True
    size = sizes.get(stat.path)
    # Some writers record no size.
    same = size is not None and (not stat.size_bytes or (is_log and may_grow and size > stat.size_bytes))
    if same or not belongs:
        return None
    return Damage(
        partition=stat.partition,
        path=stat.path,
        instant=instant.requested,
        action=str(instant.action),
        expected=stat.size_bytes,
        actual=size,
        is_log=is_log,
    )
