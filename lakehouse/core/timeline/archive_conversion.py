"""Copy the archived timeline to the form of another table version, before the properties are switched.

    version 6       archived/.commits_.archive.<n>_1-0-1    one record per state of an instant, or per action
    later           timeline/history/<first>_<last>_0.parquet, manifest_<n>, _version_

Apache Hudi does the same (V6-12.2, V6-12.8): the old archive stays where it is, and actions of a round trip are in both
forms. Its downgrade drops every eleventh action; here all are copied, and an action that the new archive contains is
not copied again. So a repeated copy adds nothing, and a crash leaves complete files only. Readers of the present
version do not read the new archive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.timeline.archived_log import ArchivedLog
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.errors import CorruptTableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant

#: Maximum number of actions in memory, and in a new file. The metadata of a commit can have megabytes.
_AT_ONCE = 100
Archive = ArchivedTimeline | ArchivedLog


def convert_archive(
    source: Archive, target: Archive, layout: TableLayout, completions: Mapping[Instant, str], check: Callable[[], None]
) -> int:
    """Add the archived actions that the new archive lacks, and return their number; call under the lock.

    Args:
        source: The archive of the present version.
        target: The archive of the new version.
        layout: The layout of the new version, which encodes commits.
        completions: Completion times by instant, if the present version has none.
        check: Raises an error if the lock was lost. It is called before each step that readers could see.

    Raises:
        CorruptTableError: A file of the archive cannot be read.
        RetryableError: The lock was lost, or another archive run is active.
    """
    present = {instant.key for instant in target.instants()}
    wanted = [instant for instant in source.instants() if instant.key not in present]
    for start in range(0, len(wanted), _AT_ONCE):
        instants = wanted[start : start + _AT_ONCE]
        actions = [_converted(action, layout, completions) for action in _read(source, instants)]
        if isinstance(target, ArchivedLog):
            target.append_actions(actions, check)
        else:
            target.append(actions, instants[0].requested, instants[-1].requested, check)
    return len(wanted)


def _read(source: Archive, instants: Sequence[Instant]) -> list[ArchivedAction]:
    """Return the actions of instants in their order. A savepoint has the requested time of its commit."""
    actions = {action.instant: action for action in source.each(i.requested for i in instants)}
    missing = next((instant for instant in instants if instant not in actions), None)
    if missing is not None:
        raise CorruptTableError(
            f"the {missing.action} {missing.requested} of the archive in {source.directory} has no metadata that can "
            "be read; restore the archive from a backup",
            instant=missing.requested,
        )
    return [actions[instant] for instant in instants]


def _converted(action: ArchivedAction, layout: TableLayout, completions: Mapping[Instant, str]) -> ArchivedAction:
    instant, metadata = action.instant, action.metadata
    if metadata is not None and instant.action.completed_as in WRITE_ACTIONS:
        is_replacement = instant.action.completed_as is Action.REPLACECOMMIT
        metadata = layout.encode_commit(decode_commit(metadata), replace=is_replacement)
    if layout.has_completion_times:
        instant = replace(instant, completed=completions.get(instant, instant.completion))
    return replace(action, instant=instant, metadata=metadata)
