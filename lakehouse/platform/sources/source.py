"""The contract between an ingest run and a source.

    plan      look up the records after the checkpoint, or in the data interval, without reading them
    read      turn the planned records into rows; write records that cannot become rows to the dead letters
    verify    check, shortly before the commit, that the source still contains the planned records

The commit of a run contains the rows, the new checkpoint and the source's metadata. A run that fails before its commit
leaves no checkpoint, so the next run plans the same records again. A source therefore stores no state itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

from lakehouse.model.drift import BatchColumns
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.spark.sources import Frame, Schema
from lakehouse.spark.table_changes import RowGroups
from lakehouse.spec.contracts.job import SourceLag
from lakehouse.spec.options.schema import SchemaPolicy

#: Key in a commit's extra metadata: the columns with which the source was read, if the spec does not declare them all.
SCHEMA = "lakehouse.ingest.schema"

#: First moment of a data interval, and first moment after it; both with a time zone.
Interval = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """The records that a run reads, and the metadata that its commit stores about them.

    Attributes:
        units: The number of units to read, such as files or offset ranges; 0 if there is nothing to read.
        reason: A message for users: the records to read, or why there are none.
        fingerprint: A short string that identifies the planned records; retries of the same plan have the same
            fingerprint.
        checkpoint: The checkpoint that the commit stores; None for a run by data interval.
        metadata: The source's entries in the commit's extra metadata.
        names: The inputs, as listed in the report, such as folders or topics.
        missing: Expected inputs that are missing.
        warning: Changes in the source that need attention, for the report; empty if none.
        lag: Records in the source after the planned ones.
    """

    units: int
    reason: str
    fingerprint: str = ""
    checkpoint: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    warning: str = ""
    lag: tuple[SourceLag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """The columns that are known before a source is read.

    Attributes:
        policy: The rules for columns that differ from the table's columns.
        schema: The columns that earlier runs read; None if there are none.
        is_stored: Whether the table exists and has columns.
        previous: The extra metadata of the newest commit with a checkpoint; empty if there is none.
        table: The columns of the table; None if it does not exist or has none.
    """

    policy: SchemaPolicy
    schema: Schema | None = None
    is_stored: bool = False
    previous: Mapping[str, str] = field(default_factory=dict)
    table: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Transform input for a source with several record streams.

    Attributes:
        rows: The views.
        removed: The same views with the rows before the changes, including deleted rows. Table rows that the transform
            makes from these rows, but not from `rows`, are deleted. None to delete nothing.
        groups: The groups that the run computes again: table rows in these groups that the transform does not make are
            deleted. None to delete nothing.
        replaces: Whether the rows replace all rows of the table.
        marks_deletes: Whether the rows get the column `_hoodie_is_deleted`.
    """

    rows: Mapping[str, Frame]
    removed: Mapping[str, Frame] | None = None
    groups: RowGroups | None = None
    replaces: bool = False
    marks_deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of a run.

    Attributes:
        frame: The rows to write, or the view `batch` if the spec has a transform and `views` is None.
        rows: The number of rows in `frame`; None if they were not counted.
        bad_records: The number of records that were written to the dead letters.
        schema: The columns and types with which the source was read.
        duplicates: The number of rows that were dropped as duplicates.
        columns: The columns that some rows lack, and columns that were not read.
        views: Input of the transform, if it is not `frame`.
        commits_empty: Whether the run commits its checkpoint although there are no rows.
        replaces: Whether the rows replace all rows of the table.
        checkpoint: The checkpoint of the commit, if a limit ended the read before the plan's end; None means the plan's
            checkpoint.
        metadata: Entries for the commit's extra metadata that depend on the records; they replace the plan's.
        lag: Records in the source after the records that were read; None means the plan's value.
        selected_from: The columns of the records before the spec's `select`; None if they are not known.
        deletes_yield: Whether deletes in `frame` are dropped if it contains other rows with their key.
    """

    frame: Frame
    rows: int | None
    bad_records: int
    schema: Schema
    duplicates: int = 0
    columns: BatchColumns | None = None
    views: Views | None = None
    commits_empty: bool = False
    replaces: bool = False
    checkpoint: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    lag: tuple[SourceLag, ...] | None = None
    selected_from: Schema | None = None
    deletes_yield: bool = False


PlanT = TypeVar("PlanT", bound=SourcePlan)


class Source(Protocol[PlanT]):
    """Reads the rows of one table from one source. Every method is idempotent."""

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> PlanT:
        """Choose the records of a run.

        The plan is deterministic: while the source does not change, the same arguments give an equal plan.

        Args:
            checkpoint: The checkpoint in the newest commit with a checkpoint; None if there is none.
            interval: The data interval of the run, or None if it has none.
            full_refresh: Whether to read all records, including records before the checkpoint.

        Raises:
            UserError: The source does not exist, or does not fit the settings or the interval.
            SourceMissingError: Expected data has not arrived, and the setting is to wait.
            RetryableError: The source does not answer.
        """

    def read(
        self, plan: PlanT, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Read the planned records for the duration of a `with` block; None if they contain no rows.

        Raises UserError, before anything is written to the table, for data that cannot be read and for more bad records
        than the spec allows.
        """

    def verify(self, plan: PlanT) -> None:
        """Raise SourceChangedError if the planned records changed, so that it is unknown which version was read."""
