"""Move completed actions from the active timeline to the archived timeline (TL-5.2).

<first>_<last>_0.parquet   manifest_<n+1>   _version_    then the actions' files on the active timeline are deleted
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import RetryableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.instant import Action, Instant, State

_READERS = 8
_PLANNED = frozenset({Action.CLEAN, Action.COMPACTION, Action.LOGCOMPACTION})
_REPLACING = frozenset({Action.REPLACECOMMIT, Action.CLUSTERING})


def move_to_archive(
    store: TimelineStore, instants: Sequence[Instant], root: str, check: Callable[[], None]
) -> ArchivedTimeline:
    """Write completed actions to the archived timeline, then delete them from the active one; call under the lock.

    A crash in between leaves an action in both places. Readers then use the active timeline, and the next archive does
    not write the action again.

    Args:
        store: The timeline.
        instants: The actions, oldest first.
        root: The root of the table, for error messages.
        check: Raises an error if the lock was lost.
    """
    history = store.archived_timeline
    assert history is not None, "layout 1 is refused before"
    history.settle(check)
    archived = {(i.key, i.completed) for i in history.instants(requested_from=instants[0].requested)}
    missing = [instant for instant in instants if (instant.key, instant.completed) not in archived]
    if missing:
        actions = read_archived_actions(store, missing, root)
        history.append(actions, missing[0].requested, missing[-1].requested, check)
    store.remove_archived(instants, check)
    return history


def read_archived_actions(store: TimelineStore, instants: Iterable[Instant], root: str) -> Iterator[ArchivedAction]:
    """Yield actions with the contents of their files; reads a few of them ahead. Errors contain `root`."""
    with ThreadPoolExecutor(_READERS) as pool:
        wanted = list(instants)
        for start in range(0, len(wanted), _READERS):
            yield from pool.map(lambda instant: _read_action(store, instant, root), wanted[start : start + _READERS])


def _read_action(store: TimelineStore, instant: Instant, root: str) -> ArchivedAction:
    pending = store.pending_files(instant)
    plan = None
    # As in Hudi, the plan is in the requested file; for a replacecommit in the inflight file, if that is not empty.
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
