"""Read planned commits of source tables as the views of a transform.

    changes: latest    a view contains the newest version of each changed row; `removed` contains the versions before
    changes: cdc       a view contains every change, with its type and commit
    changes: groups    a view contains all rows in the groups of changed rows, before and after the change

The first read of a table, and a full refresh, read the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from lakehouse.errors import CleanedHistoryError
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.source import Batch, KnownColumns, Views
from lakehouse.platform.sources.tables.table_plan import TableRange, TablesPlan, require_change_data
from lakehouse.spark.sources import Frame, Session
from lakehouse.spark.table_changes import (
    changed_rows,
    changes_of,
    groups_of_rows,
    images_of_changes,
    in_groups,
    inserts_up_to,
    no_rows,
    rows_before,
    rows_up_to,
)
from lakehouse.spec.sources.table_source import CDC, GROUPS, TableSourceSpec
from lakehouse.spec.table.table_spec import TableSpec


@contextmanager
def open_tables(
    session: Session, plan: TablesPlan, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
) -> Iterator[Batch | None]:
    """Read the commits for the duration of a `with` block. The transform converts the views to rows and bad records."""
    del known, dead_letters
    assert spec.ingest is not None and isinstance(spec.ingest.source, TableSourceSpec), "the source is tables"
    settings = spec.ingest.source
    for one in plan.ranges:
        require_change_data(one.loaded, settings)
    try:
        views = _views(session, plan, settings)
        frame = next(iter(views.rows.values()))
        yield Batch(frame=frame, rows=0, bad_records=0, schema=frame.schema, views=views, commits_empty=True)
    except CleanedHistoryError as error:
        # Spark reads change logs while the rows are written, inside of the `with` block.
        raise CleanedHistoryError(
            f"table {spec.table}: {error.message}. The changes since the last run of {spec.table} are lost; run once "
            "with --full-refresh, which reads the tables as they are now",
            table=spec.table,
        ) from error


def _views(session: Session, plan: TablesPlan, settings: TableSourceSpec) -> Views:
    joined = {one.view: rows_up_to(session, one.loaded, one.end) for one in plan.joined}
    replaces = plan.is_refresh and settings.applies_deletes
    marks = settings.applies_deletes
    if settings.changes == CDC:
        rows = {one.view: _every_change(session, one) for one in plan.ranges}
        return Views(rows={**rows, **joined})
    if settings.changes == GROUPS:
        return _group_views(session, plan, settings, joined)
    rows = {one.view: _newest(session, one) for one in plan.ranges}
    removed = None
    if marks and any(one.begin is not None for one in plan.ranges):
        removed = {**{one.view: _before(session, one) for one in plan.ranges}, **joined}
    return Views(rows={**rows, **joined}, removed=removed, replaces=replaces, marks_deletes=marks)


def _group_views(session: Session, plan: TablesPlan, settings: TableSourceSpec, joined: dict[str, Frame]) -> Views:
    marks, replaces = settings.applies_deletes, plan.is_refresh and settings.applies_deletes
    if any(one.begin is None for one in plan.ranges):
        whole = {one.view: rows_up_to(session, one.loaded, one.end) for one in plan.ranges}
        return Views(rows={**whole, **joined}, replaces=replaces, marks_deletes=marks)
    images = [_images(session, one, settings) for one in plan.ranges if one.commits]
    groups = groups_of_rows(session, images, settings.group_by)
    rows = {one.view: in_groups(rows_up_to(session, one.loaded, one.end, groups.where), groups) for one in plan.ranges}
    return Views(rows={**rows, **joined}, groups=groups if marks else None, marks_deletes=marks)


def _images(session: Session, one: TableRange, settings: TableSourceSpec) -> Frame | pa.Table:
    """Return the group columns of changed rows; with deletes, including the previous versions."""
    assert one.begin is not None, "the table was read before"
    if settings.applies_deletes:
        return images_of_changes(session, one.loaded, one.begin, one.end, settings.group_by)
    return changed_rows(session, one.loaded, one.begin, one.end)


def _newest(session: Session, one: TableRange) -> Frame:
    if one.begin is None:
        return rows_up_to(session, one.loaded, one.end)
    return changed_rows(session, one.loaded, one.begin, one.end) if one.commits else no_rows(session, one.loaded)


def _before(session: Session, one: TableRange) -> Frame:
    if one.begin is None or not one.commits:
        return no_rows(session, one.loaded)
    return rows_before(session, one.loaded, one.begin, one.end)


def _every_change(session: Session, one: TableRange) -> Frame:
    if one.begin is None:
        return inserts_up_to(session, one.loaded, one.end)
    return changes_of(session, one.loaded, one.begin, one.end)
