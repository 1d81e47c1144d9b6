"""Order of writes to one file slice, for tables whose log files are named after their slice (V6-4, V6-5.6, V6-10.4).

There is no completion time that assigns a log file to a slice, and Hudi 0.15 stops at the first log block that is newer
than the newest completed commit. So the writes of one file group must be in order:

    plan       name: the pending compaction of the group, otherwise its base instant; version: above all listed files
    inflight   under the lock: check; create the inflight file, whose profile lists the file groups
    complete   under the lock: check again

The check finds a conflict with a compaction that was requested, executed or withdrawn since the write was planned, with
any other commit or rollback of the group since then, and with a pending write of the group that is newer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.index.write_tasks import GroupTask
from lakehouse.core.operations.commit.cleanup import read_rollback_plan
from lakehouse.core.operations.commit.complete import Others
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.listing import supported_data_files
from lakehouse.core.operations.load.metadata import known_files
from lakehouse.core.operations.load.pending import pending_compactions, pending_writes, profiled_groups
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.write.attempt import WriteAttempt, start_writing
from lakehouse.core.planning.conflict import write_summary
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.model.instant import Action, Instant, Timeline


def with_log_names(write: PreparedWrite, tasks: Sequence[GroupTask]) -> tuple[GroupTask, ...]:
    """Return the tasks, with the names of the log files that they append.

    The partitions of these tasks are listed, by the metadata table if there is one. It lacks the files of pending
    writes and of failed ones that were not rolled back. A log file may have their version, because its token differs.
    """
    appending = [task for task in tasks if task.appends]
    if not appending:
        return tuple(tasks)
    held = pending_compactions(write.table)
    listing = known_files(write.table, sorted({task.partition for task in appending})).files
    files = supported_data_files(write.table, listing)
    newest = files.filter(files["is_log"]).group_by(["partition", "file_id", "instant"]).aggregate([("version", "max")])
    names = ("partition", "file_id", "instant", "version_max")
    rows = zip(*(newest[name].to_pylist() for name in names), strict=True)
    versions = {(partition, file_id, instant): version for partition, file_id, instant, version in rows}
    return tuple(_named(write, task, held, versions) if task.appends else task for task in tasks)


def _named(
    write: PreparedWrite, task: GroupTask, held: Mapping[Group, str], versions: Mapping[tuple[str, str, str], int]
) -> GroupTask:
    base = write.context.instant if task.file_slice is None else task.file_slice.base_instant
    named = held.get(task.group, base)
    return replace(task, log_slice=named, log_version=versions.get((*task.group, named), 0) + 1)


def start_in_order(attempt: WriteAttempt, profile: Sequence[GroupTask], tasks: Sequence[GroupTask]) -> Conflict | None:
    """Create the inflight file under the lock, or return the conflict because of which the write must not begin."""
    table, policy = attempt.table, attempt.write.policies.transaction
    check = SliceOrderCheck.of(attempt, {task.group: task.log_slice for task in tasks})
    with table_lock(table.env, policy) as lock:
        timeline = table.store.load()
        others = table.store.commits(writes_since(table, table.timeline, timeline))
        conflict = check.conflict(others, timeline)
        if conflict is not None:
            return conflict
        lock.check()
        start_writing(attempt, profile)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOrderCheck:
    """Checks that the writes of each file group are in order; see the module docstring.

    Attributes:
        table: The table as it was loaded for the write.
        instant: The requested time of the write.
        named: The file groups of the write, with the instants in the names of their log files; None for a base file.
    """

    table: LoadedTable
    instant: str
    named: Mapping[Group, str | None]

    @classmethod
    def of(cls, attempt: WriteAttempt, named: Mapping[Group, str | None]) -> SliceOrderCheck:
        """Return the check for the file groups of an attempt."""
        return cls(table=attempt.table, instant=attempt.instant.requested, named=named)

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the first conflict; runs under the lock."""
        now = replace(self.table, timeline=timeline)
        return (
            self._with_plan(now) or self._with_commit(others) or self._with_rollback(now) or self._with_newer_write(now)
        )

    def suspects(self, others: Others) -> Others:
        """Return no commits."""
        return ()

    def compare(self, suspects: Others) -> Conflict | None:
        """Return no conflict."""
        return None

    def _with_plan(self, now: LoadedTable) -> Conflict | None:
        """Return the conflict with a compaction that is not the one after which the log file is named."""
        planned, held = pending_compactions(self.table), pending_compactions(now)
        for group, named in self.named.items():
            held_by = held.get(group)
            if held_by is not None and held_by != named:
                return _conflict(now, held_by, group, "was planned for")
            plan = planned.get(group)
            if plan is not None and plan == named and held_by is None:
                current = now.timeline.find(plan)
                if current is None or not current.is_completed:
                    # Without its plan, readers would not find the log files that are named after it.
                    withdrawn = self.table.timeline.find(plan)
                    assert withdrawn is not None, "the plan was pending at the load"
                    return Conflict(winner=withdrawn, reason=f"the compaction {plan} of {group[1]} was withdrawn")
        return None

    def _with_commit(self, others: Others) -> Conflict | None:
        for instant, metadata in others:
            summary = write_summary(metadata)
            for group in sorted((summary.groups | summary.replaced) & self.named.keys()):
                if not summary.compacts or self.named[group] != instant.requested:
                    return _because(instant, group, "changed")
        return None

    def _with_rollback(self, now: LoadedTable) -> Conflict | None:
        earlier = {rollback.requested for rollback in self.table.timeline.where(action=Action.ROLLBACK)}
        for rollback in now.timeline.where(action=Action.ROLLBACK):
            plan = None if rollback.requested in earlier else read_rollback_plan(now, rollback)
            groups = set() if plan is None else {(r.partition, r.file_id) for r in plan.requests if r.file_id}
            for group in sorted(groups & self.named.keys()):
                return _because(rollback, group, "rolls back a write of")
        return None

    def _with_newer_write(self, now: LoadedTable) -> Conflict | None:
        for rival in pending_writes(now):
            if rival.requested > self.instant:
                for group in sorted(profiled_groups(now, rival) & self.named.keys()):
                    return _because(rival, group, "is newer, pending, and writes to")
        return None


def _conflict(now: LoadedTable, requested: str, group: Group, what: str) -> Conflict:
    winner = now.timeline.find(requested)
    assert winner is not None, "the plan is on the timeline"
    return _because(winner, group, what)


def _because(winner: Instant, group: Group, what: str) -> Conflict:
    return Conflict(winner=winner, reason=f"{winner.requested} {what} file group {group[1]} of {group[0]!r}")
