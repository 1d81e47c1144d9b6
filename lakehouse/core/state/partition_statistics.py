"""Statistics of partitions, maintained by folding commits: the files that each commit adds to the newest slices.

    statistics as of completion C  +  commits completed after C, in that order  =  statistics as of the last of them

The result is equal to the file system view of a new listing (`file_system_view`), because a commit names its files,
their sizes and the file groups it replaced. Folding needs no listing, but it needs all commits since the last fold.
`commits_to_fold` returns None if some of them may be missing on the timeline, or if a folded commit was rolled back.
Then the statistics are rebuilt from a listing for archived commits and from the remaining commits.

Cleans have no effect, because they delete no file of a newest slice. Services that rewrite rows without changing them
(compaction, clustering) change files, but neither the age nor the last modification of a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.partition_statistics import TRACKED_FILES, TableStatistics
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.state.columnar_view import latest_columns
from lakehouse.core.state.data_files import DATA_FILES, data_files, members, one_array
from lakehouse.core.state.file_system_view import VisibleTimeline, visible_timeline
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import COMPACTIONS, REWRITES, CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.statistics import PartitionLife, PartitionStatistics

_Numbers = np.ndarray[Any, Any]

#: Schema of the files in the current slices: the parts of their names, and the additional columns of `TRACKED_FILES`.
_PARSED = pa.schema([*DATA_FILES, *list(TRACKED_FILES)[3:]])
_NEVER = np.iinfo(np.int64).max
_LAYOUT = table_layout(9)


def commits_to_fold(
    statistics: TableStatistics, timeline: Timeline, *, whole: bool = False
) -> tuple[Instant, ...] | None:
    """Return the writes that `statistics` lacks, by completion time, or None if the statistics must be rebuilt.

    With `whole`, `timeline` also contains the archived writes, from the first one that `statistics` includes.
    """
    now = {instant.requested: instant.completion for instant in timeline.writes()}
    archived_before = visible_timeline(timeline, ()).archived_before
    if not archived_before or statistics.anchor < archived_before:
        # The timeline is empty, or commits that are not folded yet were archived.
        return () if not statistics.instants and not now and not statistics.files else None
    removed = [requested for requested, completed in statistics.instants.items() if now.get(requested) != completed]
    undone = timeline.where(action={Action.ROLLBACK, Action.RESTORE}, completed_after=statistics.latest)
    if any(whole or requested >= archived_before for requested in removed) or (removed and len(undone)):
        return None
    return timeline.writes().where(completed_after=statistics.folded_up_to).by_completion()


def fold(
    statistics: TableStatistics,
    commits: Sequence[tuple[Instant, CommitMetadata]],
    timeline: Timeline,
    *,
    complete: bool = True,
) -> TableStatistics:
    """Return the statistics after `commits`.

    Args:
        statistics: Statistics before the commits.
        commits: Commits by completion time, with their metadata.
        timeline: The timeline, which contains all commits.
        complete: Whether `statistics` contains every file group. If True, a compaction of an unknown group belongs to a
            replaced group, which stays hidden. If False, unknown groups are groups whose older files were cleaned, and
            `statistics` may contain files of older slices.
    """
    written, commit_of = _written(commits)
    stored = parsed_files(statistics.files)
    everything = pa.concat_tables([stored, written]).combine_chunks()
    # Files in the existing statistics precede all commits.
    commit = np.concatenate((np.full(stored.num_rows, -1, np.int64), commit_of))
    groups = pc.binary_join_element_wise(*(one_array(everything[name]) for name in ("partition", "file_id")), "\0")
    codes = groups.dictionary_encode()
    group = codes.indices.to_numpy()
    replaced_at = _replaced_at(commits, codes.dictionary)
    counted = commit < replaced_at[group]
    if complete:
        counted &= _is_known(commits, commit, group, len(codes.dictionary))
    life = _Lives(
        partitions=one_array(everything["partition"]).filter(pa.array(counted)),
        commit=commit[counted],
        group=group[counted],
        replaced_at=replaced_at,
    )
    # A replaced group has no newest slice, and its later files belong to none.
    is_visible = counted & (replaced_at[group] == _NEVER)
    touched = np.zeros(len(codes.dictionary), bool)
    touched[group[is_visible & (commit >= 0)]] = True
    changed = is_visible & (touched[group] | (not complete))
    files = [everything.filter(pa.array(is_visible & ~changed)), _newest(everything.filter(pa.array(changed)))]
    instants = {instant.requested: instant.completion for instant in timeline.writes()}
    return TableStatistics(
        files=pa.concat_tables([table.select(TRACKED_FILES.names) for table in files]).combine_chunks(),
        lives=life.after(statistics.lives, commits),
        instants=instants,
        folded_up_to=max((*instants.values(), statistics.folded_up_to)),
        anchor=_anchor(timeline),
        latest=timeline.latest_time(),
    )


def parsed_files(files: pa.Table) -> pa.Table:
    """Return `TRACKED_FILES` with the parts of the names; raise CorruptTableError for another name."""
    parsed, rows = _parsed(files.select(TRACKED_FILES.names[:3]))
    if len(rows) != files.num_rows:
        unknown = np.setdiff1d(np.arange(files.num_rows), rows)[0]
        raise CorruptTableError(f"{files['name'][int(unknown)].as_py()!r} is not the name of a data file")
    more = [files.column(name).take(pa.array(rows)) for name in TRACKED_FILES.names[3:]]
    return pa.table([*parsed.columns, *more], schema=_PARSED)


def partition_statistics(statistics: TableStatistics) -> tuple[PartitionStatistics, ...]:
    """Return one entry per partition that has files, ordered by path."""
    sums = statistics.files.group_by("partition").aggregate([("size_bytes", "sum"), ("rows", "sum"), ("name", "count")])
    columns = (sums.column(name).to_pylist() for name in ("partition", "size_bytes_sum", "rows_sum", "name_count"))
    return tuple(
        PartitionStatistics(
            partition=partition,
            created=statistics.lives[partition].created,
            modified=statistics.lives[partition].modified,
            size_bytes=size,
            rows=max(rows, 0),
            files=count,
        )
        for partition, size, rows, count in sorted(zip(*columns, strict=True))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lives:
    """Files that commits added, from which the creation and modification times of partitions are derived.

    Attributes:
        partitions: The partition of each file.
        commit: The commit number for each file; -1 for a file that existed before.
        group: The group number for each file.
        replaced_at: The number of the commit that replaced each group; `_NEVER` if none did.
    """

    partitions: pa.Array
    commit: _Numbers
    group: _Numbers
    replaced_at: _Numbers

    def after(
        self, before: Mapping[str, PartitionLife], commits: Sequence[tuple[Instant, CommitMetadata]]
    ) -> dict[str, PartitionLife]:
        """Return the times of the partitions after the commits."""
        codes = self.partitions.dictionary_encode()
        partition = codes.indices.to_numpy()
        names: list[str] = codes.dictionary.to_pylist()
        emptied = self._emptied(partition, len(names))
        touched = self._touched(commits)
        lives = {name: life for name, life in before.items() if name not in touched}
        is_rewrite = np.array([metadata.operation in REWRITES for _, metadata in commits], bool)
        pairs = np.unique(np.stack((partition, self.commit)), axis=1)
        # By partition, the commits that wrote to it after it was last empty.
        pairs = pairs[:, (pairs[1] >= 0) & (pairs[1] > emptied[pairs[0]])]
        starts = np.flatnonzero(np.diff(pairs[0], prepend=-1)).tolist()
        alive = self._alive(partition, len(names))
        requested = [instant.requested for instant, _ in commits]
        for number in np.flatnonzero(alive & (emptied < 0)).tolist():
            if names[number] in before:
                lives[names[number]] = before[names[number]]
        for start, end in pairwise([*starts, pairs.shape[1]]):
            name, numbers = names[int(pairs[0, start])], pairs[1, start:end].tolist()
            if not alive[pairs[0, start]]:
                continue
            earlier = before.get(name) if emptied[pairs[0, start]] < 0 else None
            wrote = [requested[number] for number in numbers if not is_rewrite[number]]
            first = PartitionLife(created=requested[numbers[0]], modified=requested[numbers[0]])
            life = earlier or first
            # A concurrent writer may have started earlier and completed later.
            lives[name] = PartitionLife(
                created=min([life.created, *(requested[number] for number in numbers)]),
                modified=max([life.modified, *wrote]),
            )
        return lives

    def _touched(self, commits: Sequence[tuple[Instant, CommitMetadata]]) -> frozenset[str]:
        """Return the partitions in which the commits wrote files or replaced file groups."""
        written = pc.unique(self.partitions.filter(pa.array(self.commit >= 0))).to_pylist()
        return frozenset((*written, *(name for _, metadata in commits for name in metadata.replaced)))

    def _groups(self, partition: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
        """Return the partition of each group that has files, its first commit, and the commit that replaced it."""
        order = np.lexsort((self.commit, self.group))
        first = order[np.flatnonzero(np.diff(self.group[order], prepend=-1))]
        return partition[first], self.commit[first], self.replaced_at[self.group[first]]

    def _alive(self, partition: _Numbers, count: int) -> _Numbers:
        """Return whether each partition has a group at the end."""
        of_group, _, replaced_at = self._groups(partition)
        alive = np.zeros(count, bool)
        alive[of_group[replaced_at == _NEVER]] = True
        return alive

    def _emptied(self, partition: _Numbers, count: int) -> _Numbers:
        """Return the number of the last commit after which each partition had no group; -1 if there is none."""
        of_group, first, replaced_at = self._groups(partition)
        emptied = np.full(count, -1, np.int64)
        if not len(of_group):
            return emptied
        ends = replaced_at != _NEVER
        where = np.concatenate((of_group, of_group[ends]))
        at = np.concatenate((first, replaced_at[ends]))
        change = np.concatenate((np.ones(len(first), np.int64), -np.ones(int(ends.sum()), np.int64)))
        # All events of one commit are counted together.
        order = np.lexsort((at, where))
        where, at, change = where[order], at[order], change[order]
        is_last = np.concatenate(((where[1:] != where[:-1]) | (at[1:] != at[:-1]), [True]))
        totals = np.cumsum(change)
        begins = np.diff(where, prepend=-1) != 0
        held = totals - np.repeat(
            totals[begins] - change[begins], np.diff(np.append(np.flatnonzero(begins), len(where)))
        )
        empty = is_last & (held == 0)
        np.maximum.at(emptied, where[empty], at[empty])
        return emptied


def _parsed(listing: pa.Table) -> tuple[pa.Table, _Numbers]:
    """Return the base and log files of a listing with the parts of their names, and their rows in the listing."""
    rows = pa.array(np.arange(listing.num_rows))
    numbered = data_files(listing.set_column(2, "size_bytes", rows))
    numbered = numbered.filter(pc.equal(numbered["suffix"], ""))
    row_numbers = one_array(numbered["size_bytes"])
    sizes = listing.column("size_bytes").take(row_numbers)
    return numbered.set_column(2, "size_bytes", sizes), row_numbers.to_numpy()


def _written(commits: Sequence[tuple[Instant, CommitMetadata]]) -> tuple[pa.Table, _Numbers]:
    """Return the files of commits as `_PARSED`, and the commit number for each."""
    stats = [stat for _, metadata in commits for stat in metadata.stats]
    counts = [len(metadata.stats) for _, metadata in commits]
    listing = pa.table(
        {
            "partition": pa.array([stat.partition for stat in stats], pa.string()),
            "name": pa.array([stat.path.rpartition("/")[2] for stat in stats], pa.string()),
            "size_bytes": pa.array([stat.size_bytes for stat in stats], pa.int64()),
        }
    )
    parsed, rows = _parsed(listing)
    commit = np.repeat(np.arange(len(commits)), counts)[rows]
    # A log compaction merges log files whose rows are counted already.
    merges = np.array([metadata.operation == Operation.LOG_COMPACT for _, metadata in commits], bool)
    in_log = np.array([stat.num_inserts - stat.num_deletes for stat in stats], np.int64)[rows]
    in_base = np.array([stat.num_writes for stat in stats], np.int64)[rows]
    is_log = one_array(parsed["is_log"]).to_numpy(zero_copy_only=False).astype(bool)
    completed = pa.array([instant.completion for instant, _ in commits], pa.string()).take(pa.array(commit))
    added = np.where(is_log, np.where(merges[commit], 0, in_log), in_base)
    return pa.table([*parsed.columns, completed, pa.array(added)], schema=_PARSED), commit


def _replaced_at(commits: Sequence[tuple[Instant, CommitMetadata]], groups: pa.Array) -> _Numbers:
    """Return, for each group (partition and file id), the number of the first commit that replaced it, or `_NEVER`."""
    first_commits = np.full(len(groups), _NEVER, np.int64)
    for number in range(len(commits) - 1, -1, -1):
        replaced = commits[number][1].replaced
        wanted = [f"{partition}\0{file_id}" for partition, ids in replaced.items() for file_id in ids]
        if wanted:
            first_commits[members(groups, wanted).to_numpy(zero_copy_only=False).astype(bool)] = number
    return first_commits


def _is_known(
    commits: Sequence[tuple[Instant, CommitMetadata]], commit: _Numbers, group: _Numbers, count: int
) -> _Numbers:
    """Return for each file whether its group had files before, or the file does not come from a compaction."""
    compacts = np.array([metadata.operation in COMPACTIONS for _, metadata in commits] + [False], bool)
    # The last entry belongs to files that existed before.
    first = np.full(count, _NEVER, np.int64)
    begins = ~compacts[commit]
    np.minimum.at(first, group[begins], commit[begins])
    is_counted: _Numbers = commit >= first[group]
    return is_counted


def _newest(files: pa.Table) -> pa.Table:
    """Return the files in the current slice of each group."""
    if not files.num_rows:
        return files
    pairs = files.group_by(["instant", "completed"], use_threads=False).aggregate([])
    instants = {
        requested: Instant(requested=requested, action=Action.COMMIT, state=State.COMPLETED, completed=completed)
        for requested, completed in zip(pairs["instant"].to_pylist(), pairs["completed"].to_pylist(), strict=True)
    }
    visible = VisibleTimeline(instants=instants, archived_before="")
    return latest_columns(files, visible, layout=_LAYOUT).files


def _anchor(timeline: Timeline) -> str:
    """Return a time that shows archives: while no instant from it on is archived, no later commit is archived."""
    pending = [instant.requested for instant in timeline.where(pending=True)]
    newest = max((instant.requested for instant in timeline.writes()), default="")
    return min([newest, *pending])
