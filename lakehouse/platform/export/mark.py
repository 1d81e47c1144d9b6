"""The mark of a view: the writes of the table that the view contains.

The mark names all completed writes from the oldest write that was pending. So a later export finds the writes to add,
even if they completed in another order than they were requested, and even on tables without completion times. Writes
that the mark names and that are no longer on the timeline were undone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lakehouse.core.state.file_system_view import first_write
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline

_PENDING = WRITE_ACTIONS | {Action.CLUSTERING, Action.COMPACTION, Action.LOGCOMPACTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMark:
    """The state of the table that a view shows.

    Attributes:
        instant: Requested time of the newest write by completion; empty for a table without writes.
        completion: Completion time of this write.
        anchor: Requested time. The view contains all writes that were requested before it.
        latest: The latest time on the timeline; a later restore may have undone writes of the view.
        writes: Completion times of the writes in the view, by requested time, from the anchor on.
    """

    instant: str = ""
    completion: str = ""
    anchor: str = ""
    latest: str = ""
    writes: tuple[tuple[str, str], ...] = ()

    def encode(self) -> str:
        """Return the mark as JSON."""
        return json.dumps(
            {
                "instant": self.instant,
                "completion": self.completion,
                "anchor": self.anchor,
                "latest": self.latest,
                "writes": dict(self.writes),
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str | None) -> ExportMark | None:
        """Return the mark; None if the text is not a mark."""
        try:
            fields = json.loads(text or "")
            names = ("instant", "completion", "anchor", "latest")
            writes = tuple((str(name), str(value)) for name, value in fields["writes"].items())
            return cls(**{name: str(fields[name]) for name in names}, writes=writes)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def mark_of(timeline: Timeline) -> ExportMark:
    """Return the mark of a view that shows the newest state of the timeline."""
    writes = timeline.writes()
    if not len(writes):
        return ExportMark(anchor=first_write(timeline), latest=timeline.latest_time())
    newest = writes.by_completion()[-1]
    pending = [instant.requested for instant in timeline.where(action=_PENDING, pending=True)]
    anchor = min([max(instant.requested for instant in writes), *pending])
    since = tuple((i.requested, i.completion) for i in writes if i.requested >= anchor)
    return ExportMark(
        instant=newest.requested,
        completion=newest.completion,
        anchor=anchor,
        latest=timeline.latest_time(),
        writes=since,
    )


def new_writes(mark: ExportMark, timeline: Timeline) -> tuple[Instant, ...] | None:
    """Return the completed writes that the view lacks; None if the view has to be compared with the whole table.

    This is necessary if writes of the view were undone, or if writes that it lacks may be archived already.
    """
    if not mark.instant or mark.anchor < first_write(timeline):
        return None
    present = {instant.requested: instant.completion for instant in timeline.writes()}
    if any(present.get(requested) != completion for requested, completion in mark.writes):
        return None
    if present.get(mark.instant, mark.completion) != mark.completion:
        return None
    restores = timeline.where(action=Action.RESTORE, state=State.COMPLETED, completed_after=mark.latest)
    if len(restores):
        return None
    exported = dict(mark.writes)
    writes = timeline.writes().by_completion()
    return tuple(i for i in writes if i.requested >= mark.anchor and i.requested not in exported)
