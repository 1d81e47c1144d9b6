"""Read the files of completed actions in the form in which the archived timeline stores them (TL-5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import RetryableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.instant import Action, Instant, State

_READERS = 8
_PLANNED = frozenset({Action.CLEAN, Action.COMPACTION, Action.LOGCOMPACTION})
_REPLACING = frozenset({Action.REPLACECOMMIT, Action.CLUSTERING})


def read_archived_actions(store: TimelineStore, instants: Iterable[Instant], root: str) -> Iterator[ArchivedAction]:
    """Yield actions with the contents of their files; reads a few of them ahead. `root` is named by errors."""
    with ThreadPoolExecutor(_READERS) as pool:
        wanted = list(instants)
        for start in range(0, len(wanted), _READERS):
            yield from pool.map(lambda instant: _read_action(store, instant, root), wanted[start : start + _READERS])


def _read_action(store: TimelineStore, instant: Instant, root: str) -> ArchivedAction:
    pending = store.pending_files(instant)
    plan = None
    # As in Hudi: the plan is the requested file; for a replacecommit the inflight file, if it is not empty.
    for state in pending:
        if state.action in _REPLACING or (state.action in _PLANNED and state is pending[0]):
            plan = store.read(state, state.state) or plan
    metadata = store.read(instant, State.COMPLETED)
    if metadata is None:
        raise RetryableError(
            f"{root}: {instant.requested} was archived by another process meanwhile; run again",
            instant=instant.requested,
        )
    return ArchivedAction(instant=instant, metadata=metadata, plan=plan)
