"""Committed files that are lost or changed: what commits state of their files, compared with a listing.

A commit names each file it wrote, with its size. A file of a newest slice that is not listed, or has another size, was
lost or damaged after the commit, and a reader would silently return older rows. Older slices are not compared, because
cleans remove their files.

    layout 2   sizes are equal
    layout 1   a log may be longer than stated: later commits and rollbacks append to it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lakehouse.core.format.file_names import LAYOUT_V6, parse_base_file, parse_log_file
from lakehouse.core.state.file_system_view import Group, VisibleTimeline
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of a newest slice that is not what its commit states; sizes in bytes, `found` is None if it is missing."""

    partition: str
    path: str
    instant: str
    action: str
    expected: int
    found: int | None
    is_log: bool

    @property
    def problem(self) -> str:
        """What is wrong, in words."""
        state = "is missing" if self.found is None else f"has {self.found} bytes"
        return f"{self.path} {state}; the {self.action} {self.instant} wrote it with {self.expected} bytes"


def find_damage(
    commits: Iterable[tuple[Instant, CommitMetadata]],
    slices: Iterable[FileSlice],
    sizes: Mapping[str, int],
    visible: VisibleTimeline,
    *,
    layout: int,
    listed: Callable[[str], bool],
) -> tuple[Damage, ...]:
    """Return the files of newest slices that are missing or have not the size their commit states.

    `commits` are completed writes whose metadata is at hand; those that are not visible, or stand before the end of the
    archive, are ignored. `slices` and `sizes` (by path) are those of one listing, and `listed` says which partitions it
    covers. Groups that a visible replacecommit replaced are ignored.
    """
    suspects: list[tuple[Instant, WriteStat]] = []
    newest: dict[Group, str] = {}
    for instant, metadata in commits:
        if instant.requested not in visible.instants or instant.requested < visible.archived_before:
            continue
        for stat in metadata.stats:
            # Most files are as stated, so this line is all that most stats cost.
            if not stat.path or sizes.get(stat.path) == stat.size_bytes or not listed(stat.partition):
                continue
            suspects.append((instant, stat))
    if not suspects:
        return ()
    suspected = {(stat.partition, stat.file_id) for _, stat in suspects} - visible.replaced.keys()
    for file_slice in slices:
        if file_slice.base is not None and (group := (file_slice.partition, file_slice.file_id)) in suspected:
            newest[group] = file_slice.base_instant
    for _, stat in suspects:
        base = parse_base_file(stat.path.rpartition("/")[2], stat.partition, 0)
        if base is not None:
            group = (stat.partition, stat.file_id)
            newest[group] = max(base.instant, newest.get(group, ""))
    found = [
        damage
        for instant, stat in suspects
        if (group := (stat.partition, stat.file_id)) in suspected
        and (damage := _damage(instant, stat, sizes, newest.get(group, ""), visible, layout)) is not None
    ]
    return tuple(sorted(found, key=lambda damage: (damage.instant, damage.path)))


def _damage(
    instant: Instant, stat: WriteStat, sizes: Mapping[str, int], start: str, visible: VisibleTimeline, layout: int
) -> Damage | None:
    """Return the damage of one file if it belongs to the slice that starts at `start`, the newest of its group."""
    name = stat.path.rpartition("/")[2]
    if parse_base_file(name, stat.partition, 0) is not None:
        belongs, is_log = instant.requested >= start, False
    else:
        log = parse_log_file(name, stat.partition, 0)
        if log is None:
            return None
        at = log.instant if layout == LAYOUT_V6 else visible.completion(log.instant)
        belongs, is_log = start <= at, True
    size = sizes.get(stat.path)
    grows = is_log and layout == LAYOUT_V6
    # Some writers state no sizes.
    same = size is not None and (not stat.size_bytes or (grows and size > stat.size_bytes))
    if same or not belongs:
        return None
    return Damage(
        partition=stat.partition,
        path=stat.path,
        instant=instant.requested,
        action=str(instant.action),
        expected=stat.size_bytes,
        found=size,
        is_log=is_log,
    )
