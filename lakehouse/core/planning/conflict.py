"""Conflict resolution: whether a write may commit after concurrent commits (TL-8.2, TL-8.3).

same file group            conflict, unless both writes only append log files with different columns
compaction of the group    conflict only if this write has a new base file, because a compaction changes no row
overwritten partition      conflict with any concurrent commit to a partition that this write overwrites
concurrent inserts         conflict if both insert the same key; the keys in the files are compared (`may_share_keys`)
non-blocking               only base files and overwritten partitions conflict, because readers merge log files
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakehouse.errors import CorruptTableError, UserError, nearest
from lakehouse.model.commit import COMPACTIONS, REWRITES, CommitMetadata, Operation
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Instant
from lakehouse.spec.function import named_function

#: Key in the extra metadata of a commit whose rows contain only some columns: their names as a JSON array.
COLUMNS_KEY = "lakehouse.columns"
#: Key in the extra metadata of a commit: the number of earlier attempts that ended with a conflict.
CONFLICTS_KEY = "lakehouse.conflicts"
_BUCKET_DIGITS = 8
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSummary:
    """The changes of a commit that can conflict with another commit.

    Attributes:
        groups: All file groups (partition, file id) that the commit wrote, replaced or read for its decisions.
        rewritten: File groups with a new base file.
        replaced: File groups that were replaced.
        inserted: Partitions with rows of new keys.
        overwritten: Partitions that are fully replaced; None means all.
        columns: Columns that the rows have; None means all.
        compacts: Whether the commit is a compaction.
    """

    groups: frozenset[Group]
    rewritten: frozenset[Group]
    replaced: frozenset[Group]
    inserted: frozenset[str]
    overwritten: frozenset[str] | None
    columns: frozenset[str] | None = None
    compacts: bool = False

    @property
    def partitions(self) -> frozenset[str]:
        """All partitions of the file groups."""
        return frozenset(partition for partition, _ in self.groups)


#: A conflict resolution strategy: a function of (ours, theirs) that returns why `ours` may not commit after `theirs`,
#: or None.
Strategy = Callable[[WriteSummary, WriteSummary], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The commit that completed first, and the reason of the conflict."""

    winner: Instant
    reason: str


def write_summary(
    metadata: CommitMetadata, *, touched: Iterable[Group] = (), shared_columns: frozenset[str] = frozenset()
) -> WriteSummary:
    """Return the summary of a commit.

    Args:
        metadata: Metadata of the commit.
        touched: File groups that the write read for its decisions.
        shared_columns: Columns that every row has (keys, partition, ordering); they cause no conflict.
    """
    replaced = {(partition, file_id) for partition, file_ids in metadata.replaced.items() for file_id in file_ids}
    written = {(stat.partition, stat.file_id) for stat in metadata.stats}
    columns = metadata.extra.get(COLUMNS_KEY)
    overwritten = {*metadata.replaced}
    if metadata.operation == Operation.INSERT_OVERWRITE:
        # Partitions without an earlier file group are overwritten, too.
        overwritten |= {stat.partition for stat in metadata.stats}
    return WriteSummary(
        groups=frozenset({*touched, *written, *replaced}),
        rewritten=frozenset((s.partition, s.file_id) for s in metadata.stats if s.path.endswith(".parquet")),
        replaced=frozenset(replaced),
        inserted=frozenset(s.partition for s in metadata.stats if s.num_inserts and metadata.operation not in REWRITES),
        overwritten=None if metadata.operation == Operation.INSERT_OVERWRITE_TABLE else frozenset(overwritten),
        columns=None if columns is None else _names(columns) - shared_columns,
        compacts=metadata.operation in COMPACTIONS,
    )


def file_groups(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Return the conflict of optimistic concurrency control: two writes of one file group conflict."""
    if theirs.compacts:
        both = ours.rewritten & theirs.groups
    elif _bring_different_columns(ours, theirs):
        both = _not_only_logs(ours, theirs)
    else:
        both = ours.groups & theirs.groups
    if both:
        partition, file_id = min(both)
        columns = "" if ours.columns is None or theirs.columns is None else _shared(ours.columns, theirs.columns)
        return f"changed file group {file_id} of {partition!r}{columns}"
    return None if theirs.compacts else _overwritten(ours, theirs)


def buckets(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Return the conflict of optimistic concurrency control with the bucket index: one bucket is one file group."""
    reason = file_groups(ours, theirs)
    if reason is not None or theirs.compacts:
        return reason
    # A row with a new key has nulls in the other columns. If two writes inserted the same key, the later row would hide
    # the other.
    inserting = ours.inserted & theirs.inserted
    return _same_bucket(ours, theirs, lambda group: group not in ours.groups or group[0] in inserting)


def non_blocking(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Return the conflict of non-blocking concurrency control.

    Log files never conflict. Base files conflict, and new file groups of the same bucket with different ids.
    """
    both = ours.rewritten & theirs.groups if theirs.compacts else _not_only_logs(ours, theirs)
    if both:
        partition, file_id = min(both)
        return f"changed file group {file_id} of {partition!r}"
    if theirs.compacts:
        return None
    return _overwritten(ours, theirs) or _same_bucket(ours, theirs, lambda group: group not in ours.groups)


#: Strategies by option value. For writers, Hudi's strategy that prefers writers is equal to the simple one.
STRATEGIES: dict[str, Strategy] = {
    "file_groups": file_groups,
    "buckets": buckets,
    "SimpleConcurrentFileWritesConflictResolutionStrategy": file_groups,
    "PreferWriterConflictResolutionStrategy": file_groups,
    "BucketIndexConcurrentFileWritesConflictResolutionStrategy": buckets,
}


def strategy_named(name: str) -> Strategy:
    """Return a strategy by its name, or import the function `package.module:function`.

    The function takes two `WriteSummary` values: this write and a commit that completed after this write loaded the
    table. It returns the reason why this write must not commit, or None. Raises UserError for an unknown name.
    """
    builtin = STRATEGIES.get(name.rpartition(".")[2])
    if builtin is not None:
        return builtin
    if ":" not in name:
        raise UserError(
            f"option hoodie.write.lock.conflict.resolution.strategy={name!r} is not one of {', '.join(STRATEGIES)}, "
            f"nor package.module:function.{nearest(name, STRATEGIES)}"
        )
    strategy: Strategy = named_function(name, what="conflict strategy", hint="Put its folder on PYTHONPATH.")
    return strategy


def find_conflict(
    others: Iterable[tuple[Instant, WriteSummary]], ours: WriteSummary, strategy: Strategy
) -> Overlap | None:
    """Return the first conflict of `ours` with commits that completed since its load, or None."""
    for instant, theirs in others:
        reason = strategy(ours, theirs)
        if reason is not None:
            return Overlap(winner=instant, reason=f"{instant.requested} {reason}")
    return None


def may_share_keys(ours: WriteSummary, theirs: WriteSummary, *, global_keys: bool) -> bool:
    """Return whether both writes may have inserted a key twice in a partition, or with `global_keys` in the table."""
    if theirs.compacts or not ours.inserted or not theirs.inserted:
        return False
    return global_keys or bool(ours.inserted & theirs.inserted)


def _names(text: str) -> frozenset[str]:
    try:
        return frozenset(parse_json(text))
    except (ValueError, TypeError) as error:
        raise CorruptTableError(f"{COLUMNS_KEY} of a commit is not a list of names: {text[:120]!r}") from error


def _not_only_logs(ours: WriteSummary, theirs: WriteSummary) -> frozenset[Group]:
    """Return the common file groups in which one of the writes did more than append a log file."""
    return ((ours.rewritten | ours.replaced) & theirs.groups) | (ours.groups & (theirs.rewritten | theirs.replaced))


def _bring_different_columns(ours: WriteSummary, theirs: WriteSummary) -> bool:
    return ours.columns is not None and theirs.columns is not None and not ours.columns & theirs.columns


def _shared(ours: frozenset[str], theirs: frozenset[str]) -> str:
    both = sorted(ours & theirs)
    return f", column {both[0]!r}" if both else ""


def _overwritten(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    both = theirs.partitions if ours.overwritten is None else ours.overwritten & theirs.partitions
    return f"wrote to partition {min(both)!r}, which this write replaces" if both else None


def _same_bucket(ours: WriteSummary, theirs: WriteSummary, counts: Callable[[Group], bool]) -> str | None:
    mine = {(partition, file_id[:_BUCKET_DIGITS]) for partition, file_id in ours.groups}
    for partition, file_id in sorted(theirs.groups):
        if counts((partition, file_id)) and (partition, file_id[:_BUCKET_DIGITS]) in mine:
            return f"wrote to bucket {int(file_id[:_BUCKET_DIGITS])} of {partition!r}"
    return None
