"""Check timeline and listing of a table and return findings; no file is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME
from lakehouse.core.format.properties import table_checksum
from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.validation import Finding
from lakehouse.spec.table.bucket_rules import BucketRules

_CHECKSUM = "hoodie.table.checksum"
#: The metadata of a partition may be a Parquet or ORC file with this name.
_EXTENSIONS = ("", ".parquet", ".orc")


def check_properties(raw: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on the properties of a table. Old writers write no checksum."""
    stated = raw.get(_CHECKSUM)
    expected = table_checksum(raw.get("hoodie.database.name"), raw["hoodie.table.name"])
    if stated is not None and stated != str(expected):
        yield Finding(
            invariant="properties.checksum",
            problem=f"{_CHECKSUM} is {stated}, that of {raw['hoodie.table.name']} is {expected}",
            path=".hoodie/hoodie.properties",
        )


def check_timeline(
    instants: Iterable[Instant],
    archived: Collection[tuple[str, Action]],
    *,
    layout: TableLayout,
    is_upgraded: bool = False,
) -> Iterator[Finding]:
    """Yield findings on the files of a timeline.

    Args:
        instants: One Instant per file.
        archived: The keys of the archive.
        layout: Layout of the timeline.
        is_upgraded: Whether the table had layout 1 before. Hudi took the completion times of its actions from the
            modification times of files, which a copy makes equal and many storages keep in seconds.
    """
    files = sorted(set(instants), key=lambda i: (i.requested, i.action.completed_as, i.state))
    for requested, same_time in groupby(files, key=lambda instant: instant.requested):
        of_key: dict[tuple[str, Action], list[Instant]] = {}
        for instant in same_time:
            of_key.setdefault(instant.key, []).append(instant)
        # A savepoint has the same requested time as its commit.
        actions = [str(action) for _, action in of_key if action is not Action.SAVEPOINT]
        if len(actions) > 1:
            yield Finding(
                invariant="timeline.unique",
                problem=f"{' and '.join(actions)} have the same time",
                instant=requested,
            )
        for key, states in of_key.items():
            yield from _check_instant(states, is_archived=key in archived, layout=layout)
    completed = sorted((i for i in files if i.completed), key=lambda i: (i.completion, i.requested))
    for completion, group in groupby(completed, key=lambda instant: instant.completion):
        times = sorted({instant.requested for instant in group})
        if len(times) > 1:
            yield Finding(
                invariant="timeline.completions" if is_upgraded else "timeline.unique",
                problem=f"{' and '.join(times)} completed at {completion}",
                instant=times[1],
            )


def _check_instant(states: Sequence[Instant], *, is_archived: bool, layout: TableLayout) -> Iterator[Finding]:
    last = states[-1]
    completed = [instant for instant in states if instant.is_completed]
    if len(completed) > 1:
        times = " and ".join(sorted(instant.completion for instant in completed))
        yield Finding(
            invariant="timeline.unique", problem=f"{last.action} completed at {times}", instant=last.requested
        )
    for instant in completed:
        if instant.completed is not None and instant.completed <= instant.requested:
            yield Finding(
                invariant="timeline.order",
                problem=f"{instant.action} completed at {instant.completed}, not after its request",
                instant=instant.requested,
            )
    if is_archived:
        yield Finding(
            invariant="timeline.archived",
            problem=f"{last.action} is on the timeline and in the archive",
            instant=last.requested,
        )
    elif states[0].state is not State.REQUESTED and last.action is not Action.SAVEPOINT and layout.has_completion_times:
        yield Finding(
            invariant="timeline.requested",
            problem=f"{last.action} is {last.state.name.lower()} and has no requested file",
            instant=last.requested,
        )


# parameters: the two sides of a comparison, and the files that the table may contain
def check_files(
    commits: Iterable[tuple[Instant, CommitMetadata]],
    sizes: Mapping[str, int],
    cleaned_paths: Collection[str],
    *,
    layout: TableLayout,
    upgraded: bool = False,
    compacting: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield the files in commits that are missing or have another size.

    Args:
        commits: Commits with their metadata.
        sizes: Sizes of all files in bytes, by path.
        cleaned_paths: Paths that cleans deleted or may be deleting.
        layout: Layout of the table. The archive of a timeline without completion times is not read and may contain
            cleans, so a missing file is reported only if it is the newest of a file group that is not replaced.
        upgraded: Whether the table may contain log files of version 6, to which later commits appended.
        compacting: The requested times of pending compactions; names of such log files may contain them.
    """
    may_grow = upgraded or layout.appends_to_logs
    commits = list(commits)
    older = _superseded(commits) if not layout.has_completion_times else frozenset()
    instants = {instant.requested for instant, _ in commits} | {*compacting}
    # In an upgraded table, the names of older log files contain the instants of archived writes.
    since = min(instants, default="") if upgraded else ""
    for instant, metadata in commits:
        for stat in metadata.stats:
            stated = {stat.path: stat.size_bytes} if stat.path else {}
            for path, size in {**stated, **stat.cdc_files}.items():
                actual_size = sizes.get(path)
                if actual_size is None and _is_undone_copy(path, instant, instants, since):
                    continue
                if actual_size is None:
                    # A clean deletes a change log together with its base file.
                    if path not in cleaned_paths and stat.path not in cleaned_paths and path not in older:
                        yield Finding(
                            invariant="file.present",
                            problem=f"the {instant.action} names the file, which is missing",
                            path=path,
                            instant=instant.requested,
                        )
                elif size and (actual_size < size if may_grow and _is_log(path) else actual_size != size):
                    yield Finding(
                        invariant="file.size",
                        problem=f"the file has {actual_size} bytes, but the {instant.action} states {size}",
                        path=path,
                        instant=instant.requested,
                    )


def _is_undone_copy(path: str, instant: Instant, instants: Collection[str], since: str) -> bool:
    """Return whether a log contains rows that its write copied for a bucket resize that was undone (MDT-12.5)."""
    name = path.rpartition("/")[2]
    named_after = instant_of(name)
    if named_after is None or named_after < since or named_after in instants:
        return False
    return _is_log(path) and named_after != instant.requested


def _superseded(commits: Iterable[tuple[Instant, CommitMetadata]]) -> frozenset[str]:
    """Return the files of replaced groups and older files of groups whose base file a later commit wrote."""
    newest: dict[tuple[str, str], str] = {}
    replaced = set()
    for instant, metadata in commits:
        replaced |= {(partition, name) for partition, names in metadata.replaced.items() for name in names}
        for stat in metadata.stats:
            if not _is_log(stat.path):
                group = (stat.partition, stat.file_id)
                newest[group] = max(instant.requested, newest.get(group, ""))
    return frozenset(
        stat.path
        for instant, metadata in commits
        for stat in metadata.stats
        if (group := (stat.partition, stat.file_id)) in replaced or instant.requested < newest.get(group, "")
    )


def _is_log(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")


def check_named(
    invariant: str, instant: Instant, paths: Iterable[str], sizes: Mapping[str, int], what: str
) -> Iterator[Finding]:
    """Yield the missing files of a plan or savepoint."""
    for path in paths:
        if path not in sizes:
            yield Finding(
                invariant=invariant,
                problem=f"the {what} names the file, which is missing",
                path=path,
                instant=instant.requested,
            )


def check_partitions(slices: Iterable[FileSlice], sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the partitions with file groups but without metadata file."""
    for partition in sorted({file_slice.partition for file_slice in slices}):
        path = f"{partition}/{PARTITION_METADATA_NAME}".lstrip("/")
        if not any(f"{path}{extension}" in sizes for extension in _EXTENSIONS):
            yield Finding(invariant="partition.metadata", problem="the partition has no metadata file", path=path)


def check_buckets(slices: Iterable[FileSlice], rules: BucketRules) -> Iterator[Finding]:
    """Yield the file groups of a bucket index table that belong to no bucket, and buckets with several groups."""
    groups: dict[tuple[str, int], str] = {}
    for file_slice in slices:
        partition, file_id = file_slice.partition, file_slice.file_id
        path = file_slice.base.path if file_slice.base is not None else file_slice.logs[0].path
        try:
            bucket, count = bucket_of(file_id), rules.of(partition)
        except UserError as error:
            yield Finding(invariant="bucket.layout", problem=error.message, path=path)
            continue
        if bucket >= count:
            problem = f"file group {file_id} belongs to bucket {bucket}, but the partition has {count} buckets"
            yield Finding(invariant="bucket.layout", problem=problem, path=path)
        other = groups.setdefault((partition, bucket), file_id)
        if other != file_id:
            problem = f"file groups {other} and {file_id} both belong to bucket {bucket}"
            yield Finding(invariant="bucket.layout", problem=problem, path=path)


def check_rings(slices: Iterable[FileSlice], rings: Mapping[str, Ring]) -> Iterator[Finding]:
    """Yield the file groups of a table with consistent hashing that are not in the ring of their partition (MDT-12)."""
    for file_slice in slices:
        partition, file_id = file_slice.partition, file_slice.file_id
        path = file_slice.base.path if file_slice.base is not None else file_slice.logs[0].path
        ring = rings.get(partition)
        if ring is None:
            problem = f"partition {partition!r} has no hashing metadata, so no writer finds file group {file_id}"
            yield Finding(invariant="bucket.layout", problem=problem, path=path)
        elif ring.node_of_group(file_id) is None:
            problem = f"file group {file_id} belongs to no range of hash values of {ring.metadata.instant}.hashing_meta"
            yield Finding(invariant="bucket.layout", problem=problem, path=path)
