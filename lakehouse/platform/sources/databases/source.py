"""The `Source` of one table of a database, whose chunks and changes are staged already."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.platform.sources.databases.checkpoint import DatabaseCheckpoint
from lakehouse.platform.sources.databases.plan import DatabasePlan, TableEvents, again, apply_events
from lakehouse.platform.sources.databases.server import CHANGE, COMMITTED, DELETE, INSERT, POSITION, LogPosition
from lakehouse.platform.sources.databases.staging import CHUNK, KEYS, LOG, Staged, StagedFile
from lakehouse.platform.sources.databases.types import stored_schema
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns
from lakehouse.spark.bad_records import pin, unpin
from lakehouse.spark.database_rows import (
    ChangeColumns,
    live_rows,
    merged_rows,
    newest_changes,
    purged_rows,
    selected_rows,
    staged_rows,
    with_more,
)
from lakehouse.spark.sources import Frame, Session
from lakehouse.spec.database_source import METADATA_PREFIX, DatabaseSettings

log = logging.getLogger(__name__)

#: Keys of a commit's extra metadata: how far the table is behind the source, and what changed the source table.
LAG = "lakehouse.ingest.lag"
EVENTS = "lakehouse.ingest.events"
#: A commit without rows is made if the log went on by so many bytes, so that no later run reads them again.
IDLE_BYTES = 16 << 20
_MARKS = pa.schema([(CHANGE, pa.string()), (POSITION, pa.int64()), (COMMITTED, pa.timestamp("us", "UTC"))])
_METADATA = {"position": POSITION, "committed_at": COMMITTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a commit of one table is made of.

    Attributes:
        plan: The plan of the table.
        staged: The files of the pass.
        is_far: Whether the window is so long that its end is committed even without rows.
        lag: How far the table is behind the source after the commit.
        kinds: The kinds of the columns after the log was read.
        begun: The end of the log before the plan.
    """

    plan: DatabasePlan
    staged: Staged
    is_far: bool
    lag: dict[str, int]
    kinds: Mapping[str, str]
    begun: LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSource:
    """One table of a database for one commit.

    Attributes:
        session: The Spark session.
        settings: The settings of the source.
        window: What the commit is made of.
        select: SQL expressions of the spec.
        stored: Returns the rows of the target table with these columns; None if it does not exist.
    """

    session: Session
    settings: DatabaseSettings
    window: Window
    select: tuple[str, ...]
    stored: Callable[[Sequence[str]], Frame] | None

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> DatabasePlan:
        """Return the plan by which the window was staged; an empty one if another run has committed since."""
        del interval, full_refresh
        plan = self.window.plan
        if checkpoint == plan.previous:
            return plan
        return replace(plan, units=0, reason="another run committed while this one read; the next run continues")

    @contextmanager
    def read(self, plan: DatabasePlan, *, known: KnownColumns, dead_letters: DeadLetterBox) -> Iterator[Batch | None]:
        """Merge the staged chunks and changes (see `Source.read`)."""
        del dead_letters
        staged = self.window.staged
        events = apply_events(
            tuple(one for one in staged.events if one.table == plan.table.name),
            self.settings,
            exists=plan.exists,
            snapshots=bool(plan.key),
            same_columns=self._has_same_columns(plan),
        )
        columns = self._columns(known)
        changes = staged.of(plan.table.name, LOG)
        newest = self._newest(plan, columns, changes, events.emptied_at)
        pin(newest)
        try:
            rows = self._rows(plan, columns, newest, events)
            state = self._state(plan, events)
            count = sum(one.rows for one in (*changes, *staged.of(plan.table.name, CHUNK)))
            yield Batch(
                frame=rows,
                rows=count,
                bad_records=0,
                schema=rows.schema,
                commits_empty=self._advances(plan, events),
                replaces=events.emptied_at is not None,
                checkpoint=state.to_json(),
                metadata={LAG: json.dumps(self.window.lag)}
                | ({EVENTS: json.dumps(events.notes)} if events.notes else {}),
            )
        finally:
            unpin(newest)

    def verify(self, plan: DatabasePlan) -> None:
        """Nothing to verify: staged files do not change (see `Source.verify`)."""

    def _has_same_columns(self, plan: DatabasePlan) -> bool:
        known = plan.state if plan.previous is None else DatabaseCheckpoint.from_json(plan.previous)
        return known.kinds == plan.state.kinds == self.window.kinds

    def _columns(self, known: KnownColumns) -> pa.Schema:
        """Return the columns of the rows: those of the table, and those that it got while the log was read."""
        del known
        plan = self.window.plan
        columns = {column.name: column.type for column in stored_schema(plan.table.schema, plan.key)}
        for file in self.window.staged.of(plan.table.name, LOG):
            for column in file.columns:
                # A column of an older version of the table was dropped.
                if column.name not in columns and (not plan.exists or column.name not in plan.state.kinds):
                    columns[column.name] = column.type
        return pa.schema(list(columns.items()))

    def _newest(
        self, plan: DatabasePlan, columns: pa.Schema, files: tuple[StagedFile, ...], after: int | None
    ) -> Frame:
        schema = pa.schema([*columns, *_MARKS])
        changes = self._read(files, schema)
        if not plan.key:
            after = max(after or 0, plan.state.position.order)
        return newest_changes(changes, plan.key, _marks(self.settings), after)

    def _rows(self, plan: DatabasePlan, columns: pa.Schema, newest: Frame, events: TableEvents) -> Frame:
        staged, marks = self.window.staged, _marks(self.settings)
        if not plan.key:
            _refuse_changes(newest, plan.table.name)
        chunks = None
        # Rows that a chunk saw after the table was emptied are in the log after that place, too.
        if plan.chunks and events.emptied_at is None:
            chunks = self._read(staged.of(plan.table.name, CHUNK), columns)
        rows = selected_rows(merged_rows(chunks, newest, plan.key, marks, seen=self._seen()), self.select)
        if events.emptied_at is not None or self.stored is None:
            return live_rows(rows)
        if plan.keys:
            names = [column.name for column in columns if column.name in plan.key]
            kinds = pa.schema([columns.field(name) for name in names])
            source_keys = self._read(staged.of(plan.table.name, KEYS), kinds)
            rows = with_more(rows, purged_rows(self.stored(plan.key), source_keys, newest, plan.key))
        return rows

    def _seen(self) -> int:
        """Return the position of the last ALTER TABLE before the plan; 0 if the window has none.

        The server ends all transactions of a table before it changes its columns, so chunks have all changes up to
        there. Changes before it lack values that the statement gave to columns.
        """
        name, begun = self.window.plan.table.name, self.window.begun.order
        altered = [one.position for one in self.window.staged.events if (one.kind, one.table) == ("alter", name)]
        return max((position for position in altered if position <= begun), default=0)

    def _read(self, files: Sequence[StagedFile], columns: pa.Schema) -> Frame:
        # Files with other columns are read apart, because Spark cannot merge every two types.
        groups: dict[pa.Schema, list[str]] = {}
        for one in files:
            groups.setdefault(one.columns, []).append(one.path)
        return staged_rows(self.session, self.window.staged.storage, list(groups.values()), columns)

    def _state(self, plan: DatabasePlan, events: TableEvents) -> DatabaseCheckpoint:
        """Return the checkpoint of the commit."""
        state = replace(plan.state, position=self.window.staged.end)
        if plan.chunks:
            state = replace(state, loaded=plan.chunks[-1].upto)
        if plan.completes:
            state = replace(state, is_complete=True, loaded=None, purges=False)
        if events.resnapshot:
            return again(state, kinds=state.kinds, resnapshot=state.resnapshot)
        return state

    def _advances(self, plan: DatabasePlan, events: TableEvents) -> bool:
        """Return whether the commit changes more than the position of the log by a little."""
        known = None if plan.previous is None else DatabaseCheckpoint.from_json(plan.previous)
        state = self._state(plan, events)
        position = state.position
        return known is None or self.window.is_far or bool(events.notes) or replace(known, position=position) != state


def _marks(settings: DatabaseSettings) -> ChangeColumns:
    stored = {_METADATA[name]: f"{METADATA_PREFIX}{name}" for name in settings.metadata}
    return ChangeColumns(change=CHANGE, deletes=DELETE, position=POSITION, committed=COMMITTED, stored=stored)


def _refuse_changes(changes: Frame, table: str) -> None:
    """Raise UserError if a table without key has updates or deletes."""
    kind = changes.where(f"{CHANGE} != '{INSERT}'").select(CHANGE, POSITION).head()
    if kind is not None:
        raise UserError(
            f"table {table} has no key, and its log has an {kind[0]} at {kind[1]}: equal rows cannot be distinguished. "
            f"Add a primary key to {table}, or declare unique columns in ingest.keys, and use a new target table",
            table=table,
        )
