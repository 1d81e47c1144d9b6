"""Plan an archive: which completed instants move from the active to the archived timeline (TL-5.3).

    archived | c1 clean c2 c3 rollback c4 | c5 ... c24   c25(pending) ...      keep.min.commits = 20 stay
               `- oldest of these move --'

Commits are archived by requested time, without gaps except savepoints, up to the first bound:

    pending write      The last commit before it stays, and all commits that completed after it was requested: the
                       writer has to find conflicts with them. Also, files older than the timeline count as committed.
    newest commit      The commit that completed last stays, because later instant times must be greater.
    savepoint          It stays, and all later commits stay.
    replacecommit      It stays until a clean has deleted the replaced files. Otherwise they would become visible again.
    leftover file      The last commit before a leftover file of a failed write stays. Files older than the timeline
                       count as committed.
    compaction         The delta commits that make the next compaction due stay.

Hudi's archiver has the same bounds, with three exceptions. It archives commits that completed after the request of a
pending write, it archives the newest commit, and it archives the newest clean. This package keeps the newest clean,
because readers use it to decide which past instants are readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.display import Condition
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline, instant_moment
from lakehouse.spec.options.archive import ArchivePolicy
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.compaction import CompactionPolicy

#: Pending instants with these actions bound the archive.
_WRITING = WRITE_ACTIONS | {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING}
_REPLACING = frozenset({Action.REPLACECOMMIT, Action.CLUSTERING})
_COUNTING = ("NUM_COMMITS", "NUM_AND_TIME")
#: Key in the extra metadata of a clean plan: the savepoints at that time, comma-separated.
_SAVEPOINTED = "savepointed_timestamps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The first commit that stays, and the reason."""

    requested: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDue(Condition):
    """Whether an archive is due, with the numbers of completed commits and actions that it would move."""

    due: bool
    reason: str
    commits: int
    actions: int


def too_few(timeline: Timeline, policy: ArchivePolicy, clean: CleanPolicy, *, force: bool = False) -> str | None:
    """Return the reason for an empty plan if the timeline contains too few commits, else None."""
    commits, (least, most) = len(timeline.writes()), commits_to_keep(timeline, policy, clean)
    if commits <= (least if force else most):
        return f"{commits} completed commits; {'at least' if force else 'up to'} {least if force else most} are kept"
    return None


def commits_to_keep(timeline: Timeline, policy: ArchivePolicy, clean: CleanPolicy) -> tuple[int, int]:
    """Return the number of commits that stay and the number above which an archive is due.

    Both are increased if the clean policy needs more commits than the archive policy keeps.
    """
    commits = timeline.writes().instants
    needed = _commits_for_clean(commits, clean)
    if needed <= policy.min_commits:
        return policy.min_commits, policy.max_commits
    return needed, needed + policy.max_commits - policy.min_commits


def _commits_for_clean(commits: Sequence[Instant], clean: CleanPolicy) -> int:
    """Return the number of commits that the clean policy reads; 0 if the policy does not use commits."""
    if clean.policy == "KEEP_LATEST_COMMITS":
        return clean.commits_retained + 1 if len(commits) > clean.commits_retained else 0
    if clean.policy == "KEEP_LATEST_BY_HOURS" and commits:
        newest = instant_moment(commits[-1].requested)
        since = f"{newest - timedelta(hours=clean.hours_retained):%Y%m%d%H%M%S}"
        return sum(commit.requested >= since for commit in commits) + 1
    return 0


# parameters: all inputs of a plan, two with a default
def plan_archive(
    timeline: Timeline,
    policy: ArchivePolicy,
    clean: CleanPolicy,
    bounds: Iterable[Bound],
    *,
    force: bool = False,
    other_actions: Collection[Action] = (Action.ROLLBACK, Action.INDEXING),
) -> ArchivePlan:
    """Return the actions to archive; none if the timeline has too few commits.

    Args:
        timeline: The active timeline.
        policy: The archive policy.
        clean: The clean policy, which may need more commits.
        bounds: Further bounds, which cannot be computed from the timeline.
        force: Archive all commits but the minimum, even if no archive is due.
        other_actions: Actions besides commits and cleans that are archived.
    """
    reason = too_few(timeline, policy, clean, force=force)
    if reason is not None:
        return ArchivePlan(instants=(), kept=reason)
    commits = timeline.writes().instants
    first = min((*_bounds(timeline, policy), *bounds), key=lambda bound: bound.requested, default=None)
    least, _ = commits_to_keep(timeline, policy, clean)
    reason_of_next = f"{least} commits stay" if first is None else first.reason
    saved = _savepoints(timeline)
    chosen = [c for c in commits if (first is None or c.requested < first.requested) and c.requested not in saved]
    free = chosen[: len(commits) - least]
    archivable: list[Instant] = []
    pending = first_pending(timeline)
    latest = max(i.completion for i in timeline if i.is_completed)
    for commit in free:
        if pending is not None and commit.completion > pending.requested:
            reason_of_next = f"{commit.requested} completed after the pending instant {pending.requested} was requested"
            break
        if commit.completion == latest:
            reason_of_next = f"{commit.requested} completed last"
            break
        archivable.append(commit)
    if len(free) < len(chosen):
        reason_of_next = f"{least} commits stay"
    if not archivable:
        return ArchivePlan(instants=(), kept=reason_of_next)
    others = [i for i in _other_instants(timeline, other_actions) if i.requested < archivable[-1].requested]
    return ArchivePlan(
        instants=tuple(sorted((*archivable, *others), key=lambda i: (i.requested, i.action))),
        kept=reason_of_next,
    )


def _bounds(timeline: Timeline, policy: ArchivePolicy) -> list[Bound]:
    bounds = []
    pending = first_pending(timeline)
    if pending is not None:
        before = [commit for commit in timeline.writes() if commit.requested < pending.requested]
        last = before[-1].requested if before else pending.requested
        bounds.append(Bound(requested=last, reason=f"{pending.requested}.{pending.action} is pending"))
    saved = _savepoints(timeline)
    if saved and not policy.beyond_savepoint:
        bounds.append(Bound(requested=min(saved), reason=f"a savepoint keeps {min(saved)}"))
    return bounds


def bound_of_compaction(timeline: Timeline, policy: CompactionPolicy) -> Bound | None:
    """Return the bound of a merge-on-read table whose compactions are due by the number of delta commits."""
    if policy.trigger not in _COUNTING:
        return None
    deltas = timeline.where(action=Action.DELTACOMMIT)
    last = max(timeline.where(action=Action.COMMIT, state=State.COMPLETED), key=lambda i: i.requested, default=None)
    since = [d for d in deltas if last is None or not d.is_completed or d.completion > last.requested]
    start = last if last is not None else next(iter(deltas), None)
    if start is None:
        return None
    if len(since) < policy.max_delta_commits:
        return Bound(requested=start.requested, reason=f"delta commits since {start.requested} are not compacted yet")
    # Keep the number of delta commits that makes the next compaction due.
    first_kept = since[len(since) - policy.max_delta_commits]
    return Bound(
        requested=first_kept.requested, reason=f"delta commits since {first_kept.requested} make a compaction due"
    )


def bound_of_leftovers(timeline: Timeline, leftovers: Mapping[str, str]) -> Bound | None:
    """Return, as a bound, the last commit before the first leftover file of a failed write.

    `leftovers` maps instants that are on no timeline to one of their files. Without the bound, readers would return
    the rows of these files once the timeline begins later.
    """
    first = min(leftovers, default=None)
    if first is None:
        return None
    saved = _savepoints(timeline)
    before = [c.requested for c in timeline.writes() if c.requested < first and c.requested not in saved]
    if not before:
        # Skip it: a pending write is already a bound of the archive, see `_bounds`.
        return None
    reason = (
        f"no write {first} exists, and readers would show the rows of its leftover file {leftovers[first]} once the "
        "timeline begins later; `lakehouse clean orphans --delete` deletes it when it is old enough"
    )
    return Bound(requested=before[-1], reason=reason)


def bound_of_clean(timeline: Timeline, cleaned: tuple[Instant, CleanPlan] | None) -> Bound | None:
    """Return, as a bound, the first replacecommit whose replaced files the last clean `cleaned` has not deleted."""
    replacing = timeline.where(action=_REPLACING).instants
    if cleaned is None:
        oldest = "" if replacing else None
    else:
        clean, plan = cleaned
        oldest = _spared_for_savepoint(timeline, plan)
        if oldest is None:
            # A policy by file versions deletes all files that were replaced before the clean.
            oldest = clean.requested if plan.earliest is None else plan.earliest.requested
    for instant in replacing:
        if oldest is not None and instant.requested >= oldest:
            reason = f"no clean has removed the files that {instant.requested} replaced"
            return Bound(requested=instant.requested, reason=reason)
    return None


def _spared_for_savepoint(timeline: Timeline, plan: CleanPlan) -> str | None:
    """Return the first savepoint for which the clean may have kept files that were replaced later."""
    saved = min((time for time in plan.extra.get(_SAVEPOINTED, "").split(",") if time), default=None)
    if saved is None or plan.earliest is None or plan.earliest.requested <= saved:
        return None
    replaced = timeline.where(action=Action.REPLACECOMMIT, state=State.COMPLETED)
    return saved if any(saved <= i.requested <= plan.earliest.requested for i in replaced) else None


def first_pending(timeline: Timeline) -> Instant | None:
    """Return the pending instant with the smallest time that may add or rewrite rows, or None."""
    return next(iter(timeline.where(action=_WRITING, pending=True)), None)


def _savepoints(timeline: Timeline) -> frozenset[str]:
    """Return the commits that savepoints keep, pending savepoints included."""
    return frozenset(i.requested for i in timeline.where(action=Action.SAVEPOINT))


def _other_instants(timeline: Timeline, actions: Collection[Action]) -> list[Instant]:
    """Return the completed cleans except the newest one, and the completed instants of `actions`."""
    cleans = timeline.where(action=Action.CLEAN, state=State.COMPLETED).instants[:-1]
    return [*cleans, *timeline.where(action=actions, state=State.COMPLETED)]
