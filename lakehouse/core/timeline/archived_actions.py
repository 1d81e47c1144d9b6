"""Move completed actions from the active timeline to the archived timeline (TL-5.2).

<first>_<last>_0.parquet   manifest_<n+1>   _version_    then the actions' files on the active timeline are deleted
.commits_.archive.<n+1>_1-0-1                            likewise, in table version 6
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.format.timeline.archive_log import StateFile
from lakehouse.core.timeline.archived_log import ArchivedLog
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import RetryableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.instant import Action, Instant, State

_READERS = 8
_PLANNED = frozenset({Action.CLEAN, Action.COMPACTION, Action.LOGCOMPACTION})
_REPLACING = frozenset({Action.REPLACECOMMIT, Action.CLUSTERING})


# parameters: the timeline, its instants, and the options of the archive
def move_to_archive(
    store: TimelineStore,
    instants: Sequence[Instant],
    root: str,
    check: Callable[[], None],
    *,
    merge_batch: int | None = None,
) -> None:
    """Write completed actions to the archived timeline, then delete them from the active one; call under the lock.

    A crash in between leaves an action in both places. Readers then use the active timeline, and the next archive does
    not write the action again. Full levels of the archive files are merged at the end.

    Args:
        store: The timeline.
        instants: The actions, oldest first.
        root: The root of the table, for error messages.
        check: Raises an error if the lock was lost.
        merge_batch: The number of files of a level that are merged; None merges none. Archive files of version 6 are
            never merged.
    """
    history = store.archived_timeline
    if not isinstance(history, ArchivedLog):
        history.settle(check)
    archived = {(i.key, i.completed) for i in history.instants(requested_from=instants[0].requested)}
    missing = [instant for instant in instants if (instant.key, instant.completed) not in archived]
    if isinstance(history, ArchivedLog):
        if missing:
            history.append(_state_files(store, missing, root), check)
        store.remove_archived(instants, check)
        return
    if missing:
        actions = read_archived_actions(store, missing, root)
        history.append(actions, missing[0].requested, missing[-1].requested, check)
    store.remove_archived(instants, check)
    if merge_batch is not None:
        history.compact(merge_batch, check)


def _state_files(store: TimelineStore, instants: Sequence[Instant], root: str) -> Iterator[StateFile]:
    """Yield the files of instants in each state with their contents; reads a few of them ahead."""
    changed = store.modification_times()
    states = [state for instant in instants for state in (*store.pending_files(instant), instant)]

    def read(state: Instant) -> StateFile:
        content = store.read(state, state.state)
        if content is None:
            raise _archived_by_another(state, root)
        modified_ms = changed.get(store.path_of(state))
        return StateFile(
            instant=state,
            action=store.stored_action(state),
            content=content,
            # The clock of a file system may be a few milliseconds behind.
            changed=max(state.requested, "" if modified_ms is None else store.time_text(modified_ms)),
        )

    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(states), _READERS):
            yield from pool.map(read, states[start : start + _READERS])


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
        raise _archived_by_another(instant, root)
    return ArchivedAction(instant=instant, metadata=metadata, plan=plan)


def _archived_by_another(instant: Instant, root: str) -> RetryableError:
    return RetryableError(
        f"{root}: {instant.requested} was archived by another process meanwhile; run again", instant=instant.requested
    )
