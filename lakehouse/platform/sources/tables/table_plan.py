"""The plan of the source `table`: the commits that a run reads from each table."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.errors import UserError
from lakehouse.platform.sources.source import SourcePlan
from lakehouse.spec.sources.table_source import CDC, IGNORE, LATEST, TableSourceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRange:
    """The commits that a run reads from one source table.

    Attributes:
        view: The table's view in the transform.
        begin: Completion time after which commits are read; None to read the whole table.
        end: Completion time of the last commit to read, or the end of the interval.
        commits: The number of commits in the range that changed rows; for a whole table, in the active timeline.
        last: Completion time of the newest commit in the range; None if there is none.
        loaded: The table as the plan loaded it.
    """

    view: str
    begin: str | None
    end: str
    commits: int
    last: str | None
    loaded: LoadedTable = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesPlan(SourcePlan):
    """The commits to read per table, and the tables to join.

    `is_refresh` is true if the run reads everything again.
    """

    ranges: tuple[TableRange, ...] = ()
    joined: tuple[TableRange, ...] = ()
    is_refresh: bool = field(default=False, compare=False)


def require_change_data(loaded: LoadedTable, settings: TableSourceSpec) -> None:
    """Raise UserError, with both remedies, if the settings need change data and a table keeps none."""
    if loaded.config.cdc is not None or not (settings.applies_deletes or settings.changes == CDC):
        return
    needed = f"changes: {CDC}" if settings.changes == CDC else "deletes: apply (the default)"
    other = f"changes: {LATEST}" if settings.changes == CDC else f"deletes: {IGNORE}"
    raise UserError(
        f"{loaded.env.storage.root} keeps no change data, which {needed} needs: without it, deleted rows and earlier "
        f"versions are not known. Create it with the option hoodie.table.cdc.enabled: true, or write {other}",
        location=loaded.env.storage.root,
    )
