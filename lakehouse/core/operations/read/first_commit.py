"""Time travel before the first commit of a table is refused: an empty result would hide a wrong time."""

from __future__ import annotations

from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.errors import UserError


def require_commit_before(table: LoadedTable, as_of: str) -> None:
    """Raise UserError if the table has commits, and all were requested after `as_of`; it names the first and the last.

    Apache Hudi returns no rows for such a time. The archived timeline is read only if `as_of` is before the active one.
    """
    active = table.timeline.writes().instants
    if active and active[0].requested <= as_of:
        return
    archived = archived_writes(table).instants
    commits = sorted(instant.requested for instant in (*archived, *active))
    if commits and as_of < commits[0]:
        raise UserError(
            f"{table.env.storage.root}: as_of={as_of} is before the first commit of the table, {commits[0]}; the last "
            f"commit is {commits[-1]}. Give a time from {commits[0]} on",
            as_of=as_of,
            first=commits[0],
            last=commits[-1],
        )
