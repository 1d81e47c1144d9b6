"""Whether a write may still commit, given what others committed since it looked (TL-8.2, TL-8.3).

same file group            conflict, unless both only appended logs that bring different columns
compaction of the group    conflict only for a new base file: a compaction changes no row
partition wiped by us      conflict with whatever came into it meanwhile
inserts beside inserts     the keys decide; they are compared where the files are (`may_share_keys`)
non-blocking               only base files and wiped partitions conflict: logs of one group are merged by readers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakehouse.errors import CorruptTableError, UserError, nearest
from lakehouse.model.commit import COMPACTIONS, REWRITES, CommitMetadata, Operation
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Instant
from lakehouse.spec.function import named_function

#: Extra metadata of a commit whose rows bring some columns only: their names, as a JSON array.
COLUMNS_KEY = "lakehouse.columns"
_BUCKET_DIGITS = 8
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSummary:
    """What a commit did, as far as it can be in the way of another one.

    `groups` are (partition, file id), all of them; `rewritten` got a new base file, `replaced` are gone. `inserted` are
    the partitions that got rows under new keys, `wiped` those whose rows were to go, whoever wrote them, None for all.
    `columns` are those that its rows bring, None for all.
    """

    groups: frozenset[Group]
    rewritten: frozenset[Group]
    replaced: frozenset[Group]
    inserted: frozenset[str]
    wiped: frozenset[str] | None
    columns: frozenset[str] | None = None
    compacts: bool = False

    @property
    def partitions(self) -> frozenset[str]:
        """All partitions it touched."""
        return frozenset(partition for partition, _ in self.groups)


#: Says why `ours` may not follow `theirs`, or None if it may: (ours, theirs) -> reason.
Strategy = Callable[[WriteSummary, WriteSummary], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The instant that was first, and what both touched."""

    winner: Instant
    reason: str


def write_summary(
    metadata: CommitMetadata, *, touched: Iterable[Group] = (), shared_columns: frozenset[str] = frozenset()
) -> WriteSummary:
    """Return what a commit did; `touched` are groups it read and decided about beside those it wrote.

    `shared_columns` (keys, partition, ordering) are brought by every row and collide with nothing.
    """
    replaced = {(partition, file_id) for partition, file_ids in metadata.replaced.items() for file_id in file_ids}
    written = {(stat.partition, stat.file_id) for stat in metadata.stats}
    columns = metadata.extra.get(COLUMNS_KEY)
    wiped = {*metadata.replaced}
    if metadata.operation == Operation.INSERT_OVERWRITE:
        # Also those in which there was nothing to replace yet.
        wiped |= {stat.partition for stat in metadata.stats}
    return WriteSummary(
        groups=frozenset({*touched, *written, *replaced}),
        rewritten=frozenset((s.partition, s.file_id) for s in metadata.stats if s.path.endswith(".parquet")),
        replaced=frozenset(replaced),
        inserted=frozenset(s.partition for s in metadata.stats if s.num_inserts and metadata.operation not in REWRITES),
        wiped=None if metadata.operation == Operation.INSERT_OVERWRITE_TABLE else frozenset(wiped),
        columns=None if columns is None else _names(columns) - shared_columns,
        compacts=metadata.operation in COMPACTIONS,
    )


def file_groups(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Optimistic: two writes of one file group conflict, and so do two that begin the same bucket."""
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
    return None if theirs.compacts else _wiped(ours, theirs)


def buckets(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Optimistic, with the bucket index: groups are the same if their buckets are, whatever their file ids."""
    reason = file_groups(ours, theirs)
    if reason is not None or theirs.compacts:
        return reason
    # A row under a new key is whole, its other columns null: of two for one key the later would hide the other.
    inserting = ours.inserted & theirs.inserted
    return _same_bucket(ours, theirs, lambda group: group not in ours.groups or group[0] in inserting)


def non_blocking(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Logs never conflict; base files do, and groups that begin the same bucket under different ids."""
    both = ours.rewritten & theirs.groups if theirs.compacts else _not_only_logs(ours, theirs)
    if both:
        partition, file_id = min(both)
        return f"changed file group {file_id} of {partition!r}"
    if theirs.compacts:
        return None
    return _wiped(ours, theirs) or _same_bucket(ours, theirs, lambda group: group not in ours.groups)


#: Strategies by the names that options give them; Hudi's that prefers writers asks of writers what the simple one does.
STRATEGIES: dict[str, Strategy] = {
    "file_groups": file_groups,
    "buckets": buckets,
    "SimpleConcurrentFileWritesConflictResolutionStrategy": file_groups,
    "PreferWriterConflictResolutionStrategy": file_groups,
    "BucketIndexConcurrentFileWritesConflictResolutionStrategy": buckets,
}


def strategy_named(name: str) -> Strategy:
    """Return a strategy by its name, or the function that `package.module:function` names.

    The function takes two `WriteSummary` values: this write and a commit that completed after this write loaded the
    table. It returns the reason why this write must not commit, or None. Raises UserError for an unknown name.
    """
    known = STRATEGIES.get(name.rpartition(".")[2])
    if known is not None:
        return known
    if ":" not in name:
        raise UserError(
            f"option hoodie.write.lock.conflict.resolution.strategy={name!r} is none of {', '.join(STRATEGIES)}, nor "
            f"package.module:function.{nearest(name, STRATEGIES)}"
        )
    strategy: Strategy = named_function(name, what="conflict strategy", hint="Put its folder on PYTHONPATH.")
    return strategy


def find_conflict(
    others: Iterable[tuple[Instant, WriteSummary]], ours: WriteSummary, strategy: Strategy
) -> Overlap | None:
    """Return the first of the commits that completed since our load which `strategy` finds in our way, or None."""
    for instant, theirs in others:
        reason = strategy(ours, theirs)
        if reason is not None:
            return Overlap(winner=instant, reason=f"{instant.requested} {reason}")
    return None


def may_share_keys(ours: WriteSummary, theirs: WriteSummary, *, global_keys: bool) -> bool:
    """Return whether both put rows under new keys, or we delete keys, where the same key must not be twice."""
    if theirs.compacts or not ours.inserted or not theirs.inserted:
        return False
    return global_keys or bool(ours.inserted & theirs.inserted)


def _names(text: str) -> frozenset[str]:
    try:
        return frozenset(parse_json(text))
    except (ValueError, TypeError) as error:
        raise CorruptTableError(f"{COLUMNS_KEY} of a commit is no list of names: {text[:120]!r}") from error


def _not_only_logs(ours: WriteSummary, theirs: WriteSummary) -> frozenset[Group]:
    """Return the groups of both where one of them did more than append a log."""
    return ((ours.rewritten | ours.replaced) & theirs.groups) | (ours.groups & (theirs.rewritten | theirs.replaced))


def _bring_different_columns(ours: WriteSummary, theirs: WriteSummary) -> bool:
    return ours.columns is not None and theirs.columns is not None and not ours.columns & theirs.columns


def _shared(ours: frozenset[str], theirs: frozenset[str]) -> str:
    both = sorted(ours & theirs)
    return f", column {both[0]!r}" if both else ""


def _wiped(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    both = theirs.partitions if ours.wiped is None else ours.wiped & theirs.partitions
    return f"wrote to partition {min(both)!r}, which this write replaces" if both else None


def _same_bucket(ours: WriteSummary, theirs: WriteSummary, counts: Callable[[Group], bool]) -> str | None:
    mine = {(partition, file_id[:_BUCKET_DIGITS]) for partition, file_id in ours.groups}
    for partition, file_id in sorted(theirs.groups):
        if counts((partition, file_id)) and (partition, file_id[:_BUCKET_DIGITS]) in mine:
            return f"wrote to bucket {int(file_id[:_BUCKET_DIGITS])} of {partition!r}"
    return None
