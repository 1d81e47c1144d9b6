"""Choose the snapshot chunks and the log window that a commit reads for a table. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakehouse.errors import UnsupportedError, UserError
from lakehouse.platform.sources.databases.checkpoint import DatabaseCheckpoint
from lakehouse.platform.sources.databases.keys import require_unique, unlogged_key
from lakehouse.platform.sources.databases.server import (
    PLACE,
    SEES_ALL,
    Chunk,
    LogPosition,
    SchemaEvent,
    Seen,
    SourceTable,
)
from lakehouse.platform.sources.source import SourcePlan
from lakehouse.spec.sources.database_source import DatabaseSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePlan(SourcePlan):
    """The records of one table that a commit reads.

    Attributes:
        table: The source table; if it no longer exists, with the columns of its target.
        key: The key columns; empty to append.
        state: The checkpoint before this commit, with the plan's changes to the snapshot state.
        previous: The serialized checkpoint that the plan continues; None for a new table.
        chunks: The chunks to read.
        keys: Chunks of the whole table whose keys are read, to delete rows that are missing in the source.
        exists: Whether the source table exists.
        waits: Whether a later commit reads the snapshot, because the table is far behind the log.
        is_ahead: Whether the window ends before the table's log begins, so that it contains no changes of the table.
    """

    table: SourceTable
    key: tuple[str, ...]
    state: DatabaseCheckpoint
    previous: str | None = None
    chunks: tuple[Chunk, ...] = ()
    keys: tuple[Chunk, ...] = ()
    exists: bool = True
    waits: bool = False
    is_ahead: bool = False

    @property
    def completes(self) -> bool:
        """Whether this commit completes the snapshot."""
        if self.state.is_complete or self.waits:
            return False
        return not self.chunks or self.chunks[-1].upto is None

    @property
    def read_table(self) -> SourceTable:
        """The table for reading its log: with its key, and without changes that its rows already contain."""
        table = replace(self.table, key=self.key, start=self.state.position)
        if self.is_ahead or (self.waits and not self.key):
            return replace(table, seen=SEES_ALL)
        if self.previous is None:
            return table
        # The log may be read from the position of another table, which is behind this one.
        return replace(table, seen=Seen(order=self.state.position.order))


def key_of(table: SourceTable, declared: tuple[str, ...], settings: DatabaseSettings) -> tuple[str, ...]:
    """Return a table's key columns; empty if its rows are appended.

    Args:
        table: The table.
        declared: The record key in the table spec; empty if it declares none.
        settings: The settings of the source.

    Raises:
        UserError: The table has no key and the settings do not handle this case, rows are hidden, or a declared key is
            narrower than the table's keys.
        UnsupportedError: The log of the table cannot be decoded, so its snapshot is not read either.
    """
    if table.refusal:
        raise UnsupportedError(f"table {table.name} cannot be read: {table.refusal}", table=table.name)
    _require_all_rows(table)
    key = declared or settings.keys.get(table.name, ()) or table.key
    names = {column.name for column in table.columns}
    if key and table.identity is not None and not set(key) <= set(table.identity):
        raise UserError(
            f"the log does not have the key ({', '.join(key)}) of changed rows of {table.name}, but "
            f"{', '.join(table.identity) or 'no column'}: its replica identity is too small. If it were published, the "
            f"UPDATE and DELETE statements of the application could fail. Run ALTER TABLE {table.name} REPLICA "
            "IDENTITY FULL (or DEFAULT, if the key is the primary key), or leave the table out by ingest.exclude",
            table=table.name,
        )
    missing = next((name for name in key if name not in names), None)
    if table.columns and missing is not None:
        raise UserError(f"the key column {missing!r} is not a column of {table.name}", column=missing)
    require_unique(table, key, settings)
    if not key and settings.without_key == "refuse" and (lacking := unlogged_key(table)):
        raise UserError(
            f"the log of {table.name} does not have all columns of its key ({', '.join(lacking)}), because generated "
            f"columns are not in the log. Declare other unique columns that are never null in ingest.keys "
            f"({{{table.name}: column}}), or leave the table out by ingest.exclude",
            table=table.name,
        )
    if not key and settings.without_key == "refuse":
        raise UserError(
            f"table {table.name} has no primary key, so its updates and deletes cannot be applied. Declare unique "
            f"columns that are never null in ingest.keys ({{{table.name}: column}}), leave the table out by "
            "ingest.exclude, or write 'without_key: append' and 'metadata: [position]' in ingest to append its inserts",
            table=table.name,
        )
    return key


def _require_all_rows(table: SourceTable) -> None:
    """Raise UserError if row level security may hide rows of a table from its snapshot."""
    if table.has_hidden_rows:
        raise UserError(
            f"row level security of {table.name} may hide rows from the account, so the table could lack rows. A "
            "superuser can run ALTER ROLE ... BYPASSRLS for the account. Or leave the table out by ingest.exclude, or, "
            "if the account shall ingest the rows that the policies allow, write 'row_security: apply' in ingest",
            table=table.name,
        )


def first_state(
    table: SourceTable, position: LogPosition, settings: DatabaseSettings, resnapshot: str
) -> DatabaseCheckpoint:
    """Return the state from which the first commit of a table is planned; `position` is a low watermark."""
    return DatabaseCheckpoint(
        table=table.name,
        position=position,
        is_complete=settings.snapshot == "never",
        kinds=table.kinds,
        incarnation=table.incarnation,
        resnapshot=resnapshot,
    )


# parameters: the table now and at the checkpoint, and facts about it
def next_state(
    table: SourceTable,
    state: DatabaseCheckpoint,
    position: LogPosition,
    *,
    resnapshot: str,
    exists: bool = True,
    lacks_log: bool = False,
) -> DatabaseCheckpoint:
    """Return the state from which the next commit of a table is planned.

    Args:
        table: The source table as it is now.
        known: The checkpoint of its newest commit.
        position: Where its log is read from.
        resnapshot: The id of the run if it requests a new snapshot; otherwise empty.
        exists: Whether the source table exists.
        lacks_log: Whether the log did not contain the table's changes until now.
    """
    state = replace(state, position=position)
    if not exists:
        return replace(state, incarnation="")
    is_another = is_replaced(state, table)
    state = replace(state, incarnation=table.incarnation)
    if resnapshot and state.resnapshot != resnapshot:
        return again(state, kinds=table.kinds, resnapshot=resnapshot)
    if is_another or lacks_log or values_changed(state.kinds, table):
        return again(state, kinds=table.kinds, resnapshot=state.resnapshot)
    return replace(state, kinds=table.kinds)


def is_replaced(state: DatabaseCheckpoint, table: SourceTable) -> bool:
    """Return whether a source table is not the table in the checkpoint, or its log has a gap.

    Checkpoints of earlier versions contain only the first parts of the string.
    """
    before, now = state.incarnation.split(":"), table.incarnation.split(":")
    return before != now[: len(before)]


def again(state: DatabaseCheckpoint, *, kinds: Mapping[str, str], resnapshot: str) -> DatabaseCheckpoint:
    """Return a state whose snapshot starts again, and ends with deletes of rows that are missing in the source."""
    return DatabaseCheckpoint(
        table=state.table,
        position=state.position,
        purges=True,
        kinds=dict(kinds),
        resnapshot=resnapshot,
        incarnation=state.incarnation,
    )


def values_changed(kinds: Mapping[str, str], table: SourceTable) -> bool:
    """Return whether a column change modified rows without events in the log.

    Such changes are a new column whose value in older rows is not null, a renamed column, and a new column type.
    """
    places = {place_of(kind) for kind in kinds.values()} - {""}
    for column in table.columns:
        before = kinds.get(column.name)
        if before is None and (not column.fills_null or place_of(column.kind) in places):
            return True
        if before is not None and not widens(before, column.kind):
            return True
    return False


def place_of(kind: str) -> str:
    """Return the column id in a kind, which stays when the column is renamed; empty if there is none."""
    last = kind.rpartition(":")[2]
    return last if last.startswith(PLACE) else ""


def widens(before: str, after: str) -> bool:
    """Return whether a column keeps its values after a change of its kind: only numbers in the kind grew."""
    old, new = before.split(":"), after.split(":")
    if len(old) != len(new):
        return False
    return all(
        one == two or (one.isdigit() and two.isdigit() and int(one) <= int(two))
        for one, two in zip(old, new, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvents:
    """The effects of the statements in a log window on a table.

    Attributes:
        emptied_at: The position of the last statement that removed all rows; None if none did.
        resnapshot: Whether the table's current rows differ from its log.
        notes: The events, for the report.
    """

    emptied_at: int | None = None
    resnapshot: bool = False
    notes: tuple[str, ...] = field(default=())


def apply_events(
    events: tuple[SchemaEvent, ...],
    settings: DatabaseSettings,
    *,
    exists: bool,
    snapshots: bool = True,
    same_columns: bool = False,
) -> TableEvents:
    """Return the effects of a window's statements on a table; raise UserError if the settings forbid them.

    Args:
        events: The table's statements in log order.
        settings: The settings of the source.
        exists: Whether the source has a table of this name now.
        snapshots: Whether the table's snapshot can be read again: it has a key, or the spec enables its snapshot.
        same_columns: Whether the columns are the same as before the window. The next plan compares changed columns.
    """
    emptied, rereads = None, False
    notes = []
    for event in events:
        # A truncated partition is not a truncated table.
        policy = (
            "" if event.changes_rows else {"truncate": settings.truncate, "drop": settings.drop}.get(event.kind, "")
        )
        if policy == "fail":
            raise UserError(
                f"{event.kind.upper()} TABLE of {event.table} is in the log, and ingest.{event.kind} is fail: "
                f"{event.statement[:200]!r}. Set ingest.{event.kind} to another value to continue",
                table=event.table,
            )
        if (event.kind, policy) in (("truncate", "apply"), ("drop", "delete")):
            emptied = event.position
        elif event.kind == "drop" and exists:
            # Another table now has this name. Rows of the old table are deleted, regardless of the policy.
            emptied = event.position
        elif event.kind == "rename" or (event.changes_rows and (event.kind == "truncate" or same_columns)):
            rereads = True
        if event.kind in ("truncate", "drop", "rename"):
            notes.append(f"{event.kind} of {event.table}")
    if rereads and exists and not snapshots:
        raise UserError(
            f"a table was renamed to or from {events[0].table}, and the table has no key, so its rows cannot be "
            "compared. Remove 'snapshot: never' from ingest to replace the rows, or create a new target table",
            table=events[0].table,
        )
    return TableEvents(emptied_at=emptied, resnapshot=rereads and exists, notes=tuple(notes))
