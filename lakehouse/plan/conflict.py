"""Whether a write may still commit, given what others committed since it looked (format: timeline.md 8.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The instant that was first, and what both touched."""

    winner: Instant
    reason: str


def find_conflict(
    others: Iterable[tuple[Instant, CommitMetadata]],
    touched: frozenset[tuple[str, str]],
    metadata: CommitMetadata,
    *,
    keyed: bool,
) -> Overlap | None:
    """Return the first overlap of this write with commits that completed since its load, or None.

    `touched` are the (partition, file id) groups it rewrites or replaces. Without a bucket index (`keyed`) two writers
    may put the same new key into different groups, so new groups in a partition the other one wrote to conflict too.
    A compaction changes no row, so only a write that made a new base file for the same group is in its way.
    """
    mine = touched | {(stat.partition, stat.file_id) for stat in metadata.stats}
    fresh = {stat.partition for stat in metadata.stats if stat.num_inserts}
    rewritten = {(stat.partition, stat.file_id) for stat in metadata.stats if stat.prev_base_file}
    for instant, other in others:
        theirs = {(stat.partition, stat.file_id) for stat in other.stats}
        theirs |= {(partition, file_id) for partition, file_ids in other.replaced.items() for file_id in file_ids}
        compacts = other.operation in (Operation.COMPACT, Operation.LOG_COMPACT)
        both = sorted((rewritten if compacts else mine) & theirs)
        if both:
            return Overlap(
                winner=instant, reason=f"{instant.requested} changed file group {both[0][1]} of {both[0][0]!r}"
            )
        inserted = set() if compacts else {stat.partition for stat in other.stats if stat.num_inserts}
        if keyed and fresh & inserted:
            where = min(fresh & inserted)
            return Overlap(winner=instant, reason=f"{instant.requested} inserted into partition {where!r} too")
    return None
