"""The `Source` for one database table, whose chunks and changes are already staged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa

from lakehouse.errors import SnapshotNeededError, UserError
from lakehouse.platform.sources.databases.checkpoint import DatabaseCheckpoint
from lakehouse.platform.sources.databases.keyless import without_keyless
from lakehouse.platform.sources.databases.plan import DatabasePlan, TableEvents, again, apply_events
from lakehouse.platform.sources.databases.server import (
    CHANGE,
    COMMITTED,
    DELETE,
    INSERT,
    POSITION,
    UNAVAILABLE,
    LogPosition,
)
from lakehouse.platform.sources.databases.staging import CHUNK, FETCHED, KEYS, LOG, Staged, StagedFile
from lakehouse.platform.sources.databases.types import stored_schema, unreadable
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns
from lakehouse.spark.bad_records import pin, unpin
from lakehouse.spark.database_rows import (
    ChangeColumns,
    filled_changes,
    key_texts,
    last_parts,
    live_rows,
    merged_rows,
    newest_changes,
    purged_rows,
    selected_rows,
    staged_rows,
    unknown_rows,
    with_more,
    with_parts,
    with_placeholders,
)
from lakehouse.spark.sources import Frame, Session, schema_of_arrow
from lakehouse.spec.sources.database_source import METADATA_PREFIX, DatabaseSettings

log = logging.getLogger(__name__)

#: Keys in a commit's extra metadata: the lag behind the source, and the events that changed the source table.
LAG = "lakehouse.ingest.lag"
EVENTS = "lakehouse.ingest.events"
#: A commit without rows is made if the log grew by at least this many bytes, so that no later run reads them again.
IDLE_BYTES = 16 << 20
_MARKS = pa.schema([(CHANGE, pa.string()), (POSITION, pa.int64()), (COMMITTED, pa.timestamp("us", "UTC"))])
_LACKING = pa.field(UNAVAILABLE, pa.list_(pa.string()))
_METADATA = {"position": POSITION, "committed_at": COMMITTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """How to keep stored values of columns that are missing in changes.

    Attributes:
        text: The placeholder that readers of the table replace with the stored value; empty if the table has none, or
            lacks rows of the source.
        needed: Columns that decide where a row is stored or which version wins; they have no placeholder.
    """

    text: str = ""
    needed: frozenset[str] = frozenset()

    def keeps(self, column: pa.Field) -> bool:
        """Return whether a placeholder keeps the stored value of a column."""
        is_text = column.type in (pa.string(), pa.binary())
        return bool(self.text) and is_text and column.name not in self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The inputs for a commit to one table.

    Attributes:
        plan: The plan of the table.
        staged: The files of the pass.
        is_far: Whether the window is long enough that its end is committed even without rows.
        lag: The table's lag behind the source after the commit.
        kinds: The kinds of the columns after the log was read.
        begun: The end of the log before the plan.
        marker: How to keep stored values of columns that are missing in changes.
    """

    plan: DatabasePlan
    staged: Staged
    is_far: bool
    lag: dict[str, int]
    kinds: Mapping[str, str]
    begun: LogPosition
    marker: Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSource:
    """One database table for one commit.

    Attributes:
        session: The Spark session.
        settings: The settings of the source.
        window: The inputs for the commit.
        select: SQL expressions in the spec.
        allowed: The number of rows without a key that a commit may drop.
        stored: Returns the rows of the target table with these columns; None if it does not exist.
    """

    session: Session
    settings: DatabaseSettings
    window: Window
    select: tuple[str, ...]
    allowed: int
    stored: Callable[[Sequence[str]], Frame] | None

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> DatabasePlan:
        """Return the plan of the staged window; an empty plan if another run has committed since."""
        del interval, full_refresh
        plan = self.window.plan
        if checkpoint == plan.previous:
            return plan
        return replace(plan, units=0, reason="another run committed while this one read; the next run continues")

    @contextmanager
    def read(self, plan: DatabasePlan, *, known: KnownColumns, dead_letters: DeadLetterBox) -> Iterator[Batch | None]:
        """Merge the staged chunks and changes (see `Source.read`)."""
        staged = self.window.staged
        del known
        events = self._events(plan)
        columns = self._columns()
        changes = staged.of(plan.table.name, LOG)
        newest = self._newest(plan, columns, changes, events.emptied_at)
        if self._marks.unsent and plan.key:
            newest = with_placeholders(newest, self._marks, self._kept(columns), self.window.marker.text)
        pin(newest)
        try:
            merged, bad = self._merged(plan, columns, newest, events), 0
            files = (*changes, *staged.of(plan.table.name, CHUNK))
            if plan.key and any(one.keyless for one in files):
                name = plan.table.name
                merged, bad = without_keyless(merged, plan.key, name, dead_letters, table=name, allowed=self.allowed)
            rows = self._rows(plan, columns, newest, events, merged)
            state = self._state(plan, events)
            count = sum(one.rows for one in files)
            yield Batch(
                frame=rows,
                rows=count,
                bad_records=bad,
                schema=rows.schema,
                commits_empty=self._advances(plan, events),
                replaces=events.emptied_at is not None or _replaces(plan),
                checkpoint=state.to_json(),
                metadata={LAG: json.dumps(self.window.lag)}
                | ({EVENTS: json.dumps(events.notes)} if events.notes else {}),
                selected_from=schema_of_arrow(columns),
            )
        finally:
            unpin(newest)

    def unknown_keys(self, most: int) -> list[tuple[str, ...]]:
        """Return the keys of changes with values that are missing in the window and in stored rows.

        Raises SnapshotNeededError if there are more than `most`.
        """
        plan, columns = self.window.plan, self._columns()
        if not plan.key or not plan.exists or not self._marks.unsent:
            return []
        files = self.window.staged.of(plan.table.name, LOG)
        stored_keys = self._kept(columns)
        if len(stored_keys) == len(self._marks.unsent) and not any(one.moved for one in files):
            return []
        newest = self._newest(plan, columns, files, self._events(plan).emptied_at)
        keys = key_texts(unknown_rows(newest, self._marks, stored_keys), plan.key, most + 1)
        if len(keys) > most:
            raise SnapshotNeededError(
                f"more than {most:,} changes of {plan.table.name} lack values that are stored out of line (TOAST), for "
                f"example because their keys were changed. Read the table again with --resnapshot {plan.table.name}, "
                f"and run ALTER TABLE {plan.table.name} REPLICA IDENTITY FULL before such changes",
                table=plan.table.name,
            )
        return keys

    def verify(self, plan: DatabasePlan) -> None:
        """Nothing to verify: staged files do not change (see `Source.verify`)."""

    def _has_same_columns(self, plan: DatabasePlan) -> bool:
        state = plan.state if plan.previous is None else DatabaseCheckpoint.from_json(plan.previous)
        return state.kinds == plan.state.kinds == self.window.kinds

    def _events(self, plan: DatabasePlan) -> TableEvents:
        """Return the effects of the window's statements on the table."""
        return apply_events(
            tuple(one for one in self.window.staged.events if one.table == plan.table.name),
            self.settings,
            exists=plan.exists,
            snapshots=bool(plan.key) or self.settings.snapshot != "never",
            same_columns=self._has_same_columns(plan),
        )

    def _kept(self, columns: pa.Schema) -> list[str]:
        """Return the columns that are missing in changes and keep their stored values by a placeholder."""
        return [name for name in self._marks.unsent if self.window.marker.keeps(columns.field(name))]

    @property
    def _marks(self) -> ChangeColumns:
        stored = {_METADATA[name]: f"{METADATA_PREFIX}{name}" for name in self.settings.metadata}
        names = {name for one in self.window.staged.of(self.window.plan.table.name, LOG) for name in one.unavailable}
        return ChangeColumns(
            change=CHANGE,
            inserts=INSERT,
            deletes=DELETE,
            position=POSITION,
            committed=COMMITTED,
            stored=stored,
            unavailable=UNAVAILABLE,
            unsent=tuple(name for name in self._columns().names if name in names),
        )

    def _columns(self) -> pa.Schema:
        """Return the columns of the rows: the table's columns and columns added while the log was read."""
        plan = self.window.plan
        columns = {column.name: column.type for column in stored_schema(plan.table.schema, plan.key)}
        for file in self.window.staged.of(plan.table.name, LOG):
            for column in file.columns:
                # A column of an older table version was dropped.
                if column.name not in columns and (not plan.exists or column.name not in plan.state.kinds):
                    columns[column.name] = column.type
        return pa.schema(list(columns.items()))

    def _newest(
        self, plan: DatabasePlan, columns: pa.Schema, files: tuple[StagedFile, ...], after: int | None
    ) -> Frame:
        """Return the newest change per key with all values in the window."""
        staged, marks = self.window.staged, self._marks
        if not marks.unsent or not plan.key:
            return newest_changes(self._read(files, pa.schema([*columns, *_MARKS])), plan.key, marks, after)
        newest = newest_changes(self._parts(files, pa.schema([*columns, *_MARKS, _LACKING])), plan.key, marks, after)
        chunks = staged.of(plan.table.name, CHUNK) if after is None else ()
        fetched = staged.of(plan.table.name, FETCHED)
        return filled_changes(
            newest,
            self._read(chunks, columns) if chunks else None,
            last_parts(self._parts(fetched, columns), plan.key) if fetched else None,
            plan.key,
            marks,
        )

    def _merged(self, plan: DatabasePlan, columns: pa.Schema, newest: Frame, events: TableEvents) -> Frame:
        """Return the rows of chunks and changes with the delete marker."""
        staged, marks = self.window.staged, self._marks
        if not plan.key:
            _refuse_changes(newest, plan.table.name)
        chunks = None
        # Rows that a chunk read after the table was emptied are in the log after that position, too.
        if plan.chunks and events.emptied_at is None:
            # Rows of tables without a key have positions.
            marks_of = [] if plan.key else [_MARKS.field(POSITION)]
            chunks = self._read(staged.of(plan.table.name, CHUNK), pa.schema([*columns, *marks_of]))
        return merged_rows(chunks, newest, plan.key, marks, seen=self._seen())

    # parameters: the parameters of `_merged`, and its result
    def _rows(self, plan: DatabasePlan, columns: pa.Schema, newest: Frame, events: TableEvents, merged: Frame) -> Frame:
        """Return the rows to write."""
        staged = self.window.staged
        rows = selected_rows(merged, self.select)
        if events.emptied_at is not None or self.stored is None or _replaces(plan):
            return live_rows(rows)
        if plan.keys:
            names = [column.name for column in columns if column.name in plan.key]
            kinds = pa.schema([columns.field(name) for name in names])
            source_keys = self._read(staged.of(plan.table.name, KEYS), kinds)
            rows = with_more(rows, purged_rows(self.stored(plan.key), source_keys, newest, plan.key))
        return rows

    def _seen(self) -> int:
        """Return the position of the last ALTER TABLE before the plan; 0 if the window has none.

        The server waits for the end of all transactions on a table before it changes its columns, so chunks contain all
        changes up to there. Earlier changes lack values that the statement assigned to columns.
        """
        plan, begun = self.window.plan, self.window.begun.order
        events = [one for one in self.window.staged.events if (one.kind, one.table) == ("alter", plan.table.name)]
        altered = [one.position for one in events if one.position <= begun]
        if plan.table.incarnation and plan.state.kinds == self.window.kinds:
            # A log without statements: changes without a column are older than the column, even if no change contains
            # it.
            columns = {*stored_schema(plan.table.schema, plan.key)}
            files = self.window.staged.of(plan.table.name, LOG)
            altered += [one.last for one in files if not columns <= {*one.columns}]
        return max(altered, default=0)

    def _parts(self, files: Sequence[StagedFile], columns: pa.Schema) -> Frame:
        """Return the rows in files with their part numbers."""
        numbers = sorted({one.part for one in files})
        frames = [self._read([one for one in files if one.part == number], columns) for number in numbers]
        return with_parts(dict(zip(numbers, frames, strict=True)))

    def _read(self, files: Sequence[StagedFile], columns: pa.Schema) -> Frame:
        # Files with different columns are read separately, because Spark cannot merge all pairs of types.
        groups: dict[pa.Schema, dict[str, int]] = {}
        for one in files:
            groups.setdefault(one.columns, {})[one.path] = one.rows
        read = partial(staged_rows, self.session, self.window.staged.storage)
        frames = [read([sizes for schema, sizes in groups.items() if not unreadable(schema, columns)], columns)]
        for schema, sizes in groups.items():
            # Values of another type are older than the type change, after which the table is read again.
            if names := unreadable(schema, columns):
                rest = pa.schema([column for column in columns if column.name not in names])
                frames.append(read([sizes], rest))
        return reduce(with_more, frames)

    def _state(self, plan: DatabasePlan, events: TableEvents) -> DatabaseCheckpoint:
        """Return the checkpoint of the commit."""
        state = plan.state if plan.is_ahead else replace(plan.state, position=self.window.staged.end)
        if plan.chunks:
            state = replace(state, loaded=plan.chunks[-1].upto)
        if plan.completes:
            state = replace(state, is_complete=True, loaded=None, purges=False)
        if events.resnapshot:
            return again(state, kinds=state.kinds, resnapshot=state.resnapshot)
        return state

    def _advances(self, plan: DatabasePlan, events: TableEvents) -> bool:
        """Return whether the commit changes more than a small advance of the log position."""
        previous = None if plan.previous is None else DatabaseCheckpoint.from_json(plan.previous)
        state = self._state(plan, events)
        position = state.position
        return (
            previous is None
            or self.window.is_far
            or bool(events.notes)
            or replace(previous, position=position) != state
        )


def _replaces(plan: DatabasePlan) -> bool:
    """Return whether the rows replace the table: rows without a key cannot be compared with a new snapshot."""
    return bool(plan.chunks) and not plan.key and plan.previous is not None


def _refuse_changes(changes: Frame, table: str) -> None:
    """Raise UserError if a table without a key has updates or deletes."""
    kind = changes.where(f"{CHANGE} != '{INSERT}'").select(CHANGE, POSITION).head()
    if kind is not None:
        raise UserError(
            f"table {table} has no key, and its log has an {kind[0]} at {kind[1]}: equal rows cannot be distinguished. "
            f"Add a primary key to {table}, or declare unique columns in ingest.keys, and use a new target table. "
            f"To append again after the change, replace the rows by a new snapshot: --resnapshot {table}",
            table=table,
        )
