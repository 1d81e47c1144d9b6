"""Model of a merge-on-read table that consists of file names: the logs of each write and the logs in each base file.

Files exist from the requested time on, as files of an active or failed write do. A read of the latest slices returns
log names: those included in the base file, and those of the slice.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.planning.compaction import plan_compaction
from lakehouse.core.state.file_system_view import DataFile, latest_slices, visible_timeline
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.compaction import CompactionPolicy

UNBOUNDED = CompactionPolicy(strategy="UnBounded")


class MergedGroups:
    """A table of version 9: pending delta commits and compactions complete in any order."""

    layout = table_layout(9)

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.files: list[DataFile] = []
        self.included: dict[str, frozenset[str]] = {}
        self.held: dict[tuple[str, str], str] = {}
        self.clock = 0

    def tick(self) -> str:
        """Return the next instant time."""
        self.clock += 1
        return f"20260101{self.clock:09}"

    def request(self, action: Action, groups: Iterable[str] = ()) -> Instant:
        """Request an action; a delta commit writes a log to each group."""
        instant = Instant(requested=self.tick(), action=action, state=State.REQUESTED)
        self.timeline = self.timeline.transition(instant, State.REQUESTED)
        for group in groups:
            self.files.append(
                LogFile(partition="p", file_id=group, instant=instant.requested, version=1, write_token="0-0-0")
            )
        return instant

    def complete(self, instant: Instant) -> None:
        """Complete an instant."""
        self.timeline = self.timeline.transition(instant, State.INFLIGHT)
        self.timeline = self.timeline.transition(instant, State.COMPLETED, self.tick())
        self.held = {group: holder for group, holder in self.held.items() if holder != instant.requested}

    def plan(self, policy: CompactionPolicy = UNBOUNDED) -> tuple[Instant, CompactionPlan] | None:
        """Plan a compaction as the operation does: on the latest slices, with a requested time taken immediately."""
        plan = plan_compaction(self.slices(), frozenset(self.held), policy)
        if plan is None:
            return None
        instant = self.request(Action.COMPACTION)
        for operation in plan.operations:
            base = BaseFile(partition="p", file_id=operation.file_id, write_token="0-0-0", instant=instant.requested)
            before = self.included[operation.data_file] if operation.data_file else frozenset()
            self.included[base.name] = before | set(operation.log_files)
            self.held[("p", operation.file_id)] = instant.requested
            self.files.append(base)
        return instant, plan

    def slices(self, **bounds: str) -> tuple[FileSlice, ...]:
        """Return the latest slices within the bounds."""
        return latest_slices(self.files, visible_timeline(self.timeline, (), **bounds), layout=self.layout)

    def read(self, **bounds: str) -> dict[str, list[str]]:
        """Return the logs whose rows a read returns, by group; a log that is read twice occurs twice."""
        return {
            s.file_id: sorted([*(self.included[s.base.name] if s.base else ()), *(log.name for log in s.logs)])
            for s in self.slices(**bounds)
        }

    def committed(self, *, as_of: str | None = None, completed_up_to: str | None = None) -> dict[str, list[str]]:
        """Return the logs of completed delta commits within the bounds, by group."""
        seen = self.timeline.writes().where(requested_up_to=as_of, completed_up_to=completed_up_to)
        instants = {instant.requested for instant in seen}
        logs: dict[str, list[str]] = {}
        for file in self.files:
            if isinstance(file, LogFile) and file.instant in instants:
                logs.setdefault(file.file_id, []).append(file.name)
        return {group: sorted(names) for group, names in logs.items()}
