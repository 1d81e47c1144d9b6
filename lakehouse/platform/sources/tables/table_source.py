"""The source `table`: changes of other tables, read by checkpoint or by data interval (incremental ETL).

    plan      load the timelines; choose the commits after the checkpoint, or completed in the interval
    read      read the rows that these commits changed (`lakehouse.platform.sources.tables.table_reader`)
    verify    load the timelines once more: no commit that was read may have been rolled back

The first run, and a full refresh, read the whole tables. The checkpoint contains, per table, the completion time of the
newest commit that was read. Completion times are assigned in order, so no later commit can precede it. A table without
completion times is read up to its oldest pending write (`operations.read.commit_range`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from lakehouse.core.operations.load.commits import with_archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import commits_in_range, last_settled, settled
from lakehouse.core.operations.read.queries import instant_text
from lakehouse.core.planning.cdc import UNCHANGING
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, SourceChangedError, UnsupportedError, UserError
from lakehouse.model.index_type import stored_index_type
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.platform.sources.tables.table_plan import TableRange, TablesPlan, require_change_data
from lakehouse.platform.sources.tables.table_reader import open_tables
from lakehouse.spec.contracts.job import interval_text
from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.table_spec import TableSpec

#: The key in a commit's extra metadata with the commit ranges that were read.
TABLES = "lakehouse.ingest.tables"
_MS = timedelta(milliseconds=1)


class TableReader(Protocol):
    """Opens changes of tables as a context manager. `open_tables` implements it with a Spark session."""

    def __call__(
        self, plan: TablesPlan, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSource:
    """Changes of other tables.

    Attributes:
        spec: The spec of the target table.
        settings: The settings of the source.
        locations: The paths or URLs of all tables by view, with `${VAR}` replaced.
        storage_options: Options of the storage that contains the tables.
        reader: Reads chosen commits.
        tables: The tables that stay open between runs.
    """

    spec: TableSpec
    settings: TableSourceSpec
    locations: Mapping[str, str]
    storage_options: Mapping[str, str]
    reader: TableReader
    tables: OpenedTables = field(default_factory=OpenedTables)

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> TablesPlan:
        """Choose the commits to read per table (see `Source.plan`)."""
        settings = self.settings
        if settings.by_interval and interval is None:
            raise UserError(
                f"ingest.tables of table {self.spec.table}: {', '.join(settings.tables.values())} is read by data "
                "interval, and this run has none. Give --interval-start and --interval-end, or remove by_interval"
            )
        previous = TableCheckpoint() if checkpoint is None else TableCheckpoint.from_json(checkpoint)
        loaded = {view: self._load(view) for view in (*settings.tables, *settings.join)}
        empty = next((view for view, table in loaded.items() if last_settled(table) is None), None)
        if empty is not None:
            return TablesPlan(units=0, reason=f"the table {self.locations[empty]} has no commit yet that can be read")
        ranges = []
        for view in settings.tables:
            if settings.by_interval and interval is not None:
                ranges.append(self._of_interval(view, loaded[view], interval))
            else:
                begin = None if full_refresh else previous.commits.get(view)
                ranges.append(self._since(view, loaded[view], begin))
        joined = tuple(_whole(view, loaded[view]) for view in settings.join)
        units = sum(one.commits for one in ranges)
        if not units:
            return TablesPlan(units=0, reason=f"no new commits of {', '.join(settings.tables.values())}")
        reached = TableCheckpoint(commits={one.view: one.end for one in ranges})
        return TablesPlan(
            units=units,
            reason=f"{units} commits of {sum(one.commits > 0 for one in ranges)} tables will be read",
            fingerprint=_fingerprint(ranges),
            checkpoint=None if settings.by_interval else reached.to_json(),
            metadata={TABLES: self._metadata(ranges, joined)},
            names=tuple(settings.tables[one.view] for one in ranges if one.commits),
            ranges=tuple(ranges),
            joined=joined,
            is_refresh=full_refresh,
        )

    def read(
        self, plan: TablesPlan, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Read the planned commits (see `Source.read`)."""
        return self.reader(plan, self.spec, known=known, dead_letters=dead_letters)

    def verify(self, plan: TablesPlan) -> None:
        """Raise an error if a commit that was read is no longer on its timeline (see `Source.verify`)."""
        for one in plan.ranges:
            if one.last is not None and not _has_commit(one.loaded.reload(), one.last):
                raise SourceChangedError(
                    f"the newest commit that was read of {self.locations[one.view]} was undone while it was read",
                    path=self.locations[one.view],
                )

    def _load(self, view: str) -> LoadedTable:
        return self.tables.open(self.tables.env(self.locations[view], self.storage_options)).loaded

    def _since(self, view: str, loaded: LoadedTable, begin: str | None) -> TableRange:
        if begin is None:
            return _whole(view, settled(loaded))
        if not _has_commit(loaded, begin):
            raise UserError(
                f"table {self.spec.table}: the commit {begin} of {self.locations[view]}, up to which it was read, is "
                "not on the timeline any more: the table was restored, rolled back or created again. The changes since "
                "then are unknown; run once with --full-refresh",
                view=view,
                begin=begin,
            )
        # While a write is pending, nothing may be readable after the checkpoint.
        return _range(view, loaded, begin, max(begin, last_settled(loaded) or begin))

    def _of_interval(self, view: str, loaded: LoadedTable, interval: Interval) -> TableRange:
        if interval[1].timestamp() * 1000 > loaded.env.clock.now_ms():
            raise UserError(
                f"table {self.spec.table}: the interval {interval_text(interval)} is not over, so commits may still "
                "complete in it. Run it after its end",
                view=view,
            )
        # Ranges exclude their start and include their end; intervals do the opposite.
        begin, end = (_digits(loaded, moment - _MS) for moment in interval)
        return _range(view, loaded, begin, end)

    def _metadata(self, ranges: list[TableRange], joined: tuple[TableRange, ...]) -> str:
        places = {**self.settings.tables, **self.settings.join}
        value = {
            one.view: {"location": places[one.view], "begin": one.begin, "end": one.end, "commits": one.commits}
            for one in (*ranges, *joined)
        }
        return json.dumps(value, ensure_ascii=False)


def open_tables_source(context: SourceContext) -> TablesSource:
    """Return a spec's tables source, with `${VAR}` in its locations replaced."""
    settings = table_source_of(context.spec)
    check_partitions(context.spec, settings)
    return TablesSource(
        spec=context.spec,
        settings=settings,
        locations=resolved_locations(settings, context.environ),
        storage_options=context.storage_options,
        reader=partial(open_tables, context.session),
        tables=context.tables,
    )


def check_tables_source(
    spec: TableSpec, interval: Interval | None, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> None:
    """Check that the tables exist and, where deletes are applied or changes are read, that they keep change data.

    Raises:
        UserError: A table does not exist or keeps no change data, or the interval is missing.
        RetryableError: A storage does not answer.
    """
    settings = table_source_of(spec)
    check_partitions(spec, settings)
    if settings.by_interval and interval is None:
        raise UserError(
            f"ingest.tables of table {spec.table} is read by data interval, and this run has none. Give "
            "--interval-start and --interval-end, or remove by_interval",
            table=spec.table,
        )
    for view, location in resolved_locations(settings, environ).items():
        table = Table.open(location, storage_options=storage_options)
        if view in settings.tables:
            require_change_data(table.refresh(), settings)


def check_partitions(spec: TableSpec, settings: TableSourceSpec) -> None:
    """Raise UserError if partition column values do not determine whether a row stayed in its partition."""
    timed = next((column.name for column in spec.partition_by if column.type == "TIMESTAMP"), None)
    if timed is None or not settings.applies_deletes or stored_index_type(spec.write_options()).is_global:
        return
    raise UserError(
        f"table {spec.table}: partition column {timed!r} is of type TIMESTAMP, and deletes: apply compares values of "
        "partition columns. Let the transform compute a column with the text of the partition, use a global index, or "
        "write deletes: ignore",
        column=timed,
    )


def table_source_of(spec: TableSpec) -> TableSourceSpec:
    """Return a spec's settings for the source `table`."""
    settings = ingest_of(spec).source
    assert isinstance(settings, TableSourceSpec), "the registry selects the source by the type of its settings"
    return settings


def resolved_locations(settings: TableSourceSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the locations of all tables by view, with `${VAR}` replaced."""
    tables = {view: resolve(text, environ, name=f"ingest.tables.{view}") for view, text in settings.tables.items()}
    joined = {view: resolve(text, environ, name=f"ingest.join.{view}") for view, text in settings.join.items()}
    return {**tables, **joined}


def _whole(view: str, loaded: LoadedTable) -> TableRange:
    writes = loaded.timeline.writes().by_completion()
    end = writes[-1].completion
    return TableRange(view=view, begin=None, end=end, commits=len(writes), last=end, loaded=loaded)


def _range(view: str, loaded: LoadedTable, begin: str, end: str) -> TableRange:
    commits = loaded.store.commits(commits_in_range(loaded, begin, end))
    changing = [instant for instant, metadata in commits if metadata.operation not in UNCHANGING]
    last = max((instant.completion for instant in changing), default=None)
    return TableRange(view=view, begin=begin, end=end, commits=len(changing), last=last, loaded=loaded)


def _has_commit(loaded: LoadedTable, completion: str) -> bool:
    if any(instant.completion == completion for instant in loaded.timeline.writes()):
        return True
    just_before = str(int(completion) - 1).zfill(len(completion))
    archived = with_archived_writes(loaded, just_before).timeline
    return any(instant.completion == completion for instant in archived.writes())


def _digits(loaded: LoadedTable, moment: datetime) -> str:
    """Format a time as digits in the time zone of a table's timeline."""
    if loaded.config.timezone == "UTC":
        return instant_text(moment)
    return instant_text(moment.astimezone().replace(tzinfo=None))


def _fingerprint(ranges: list[TableRange]) -> str:
    text = json.dumps([(one.view, one.begin, one.end) for one in ranges])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


_VERSION = 1
_COMPLETION = re.compile(r"\d{14}|\d{17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheckpoint:
    """Per view, the completion time of the newest commit that was read from its table."""

    commits: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        return json.dumps({"version": _VERSION, "commits": dict(sorted(self.commits.items()))})

    @classmethod
    def from_json(cls, text: str) -> TableCheckpoint:
        """Parse a checkpoint.

        Raises UnsupportedError for a newer version, CorruptTableError for a string that `to_json` did not write.
        """
        try:
            value = json.loads(text)
            version, commits = value["version"], dict(value["commits"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptTableError(f"the ingest checkpoint {text[:80]!r} is not one of source tables") from error
        if version != _VERSION:
            raise UnsupportedError(
                f"the ingest checkpoint has version {version!r}, this package reads {_VERSION}: update the package",
                version=version,
            )
        for view, completion in commits.items():
            if not isinstance(completion, str) or not _COMPLETION.fullmatch(completion):
                raise CorruptTableError(
                    f"the ingest checkpoint has {completion!r} for the view {view!r}, which is not a commit time"
                )
        return cls(commits=commits)
