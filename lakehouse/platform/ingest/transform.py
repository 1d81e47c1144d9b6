"""Convert the records that a source read to the rows of a run: between the read and the write in `run`.

    transform    SQL or function over the source's views; `select` for the source `table`; else the rows themselves
    check        rows without a record key are bad records, as for all sources
    deletes      rows of the table that the transform no longer makes (see `Views`): all rows that it made before the
                 changes; the write drops a delete if the transform makes a row with its key now

The rows are cached while they are counted, because the write reads them again. If bad records are not expected, rows
are neither cached nor counted: if the write refuses a row without a key, the run starts again and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.model.drift import BatchColumns
from lakehouse.model.index_type import stored_index_type
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.platform.sources.source import Batch, Views
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spark.bad_records import count_records, good_rows, pin, rows_with_key, unpin
from lakehouse.spark.sources import Frame
from lakehouse.spark.table_changes import not_among, stored_in_groups, with_deletes
from lakehouse.spark.transforms import is_repeatable, marked_rows, run_function, run_query, selected_columns
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.transform import BATCH
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)


@contextmanager
def transformed(
    batch: Batch | None, spec: TableSpec, table: Table | None, dead_letters: DeadLetterBox, *, expects_bad: bool = True
) -> Iterator[Batch | None]:
    """Return the batch with the rows to write, for the duration of a `with` block.

    Args:
        batch: The batch that the source read; None if it has no rows.
        spec: The spec of the table.
        table: The table; None if it does not exist yet.
        dead_letters: The folder for bad records.
        expects_bad: Whether to count records and separate bad ones, even if the rows need not be counted.

    Raises:
        UserError: The transform fails, its rows lack the key, or there are more bad records than the spec allows.
    """
    section = ingest_of(spec)
    if batch is None or (batch.views is None and section.transform is None):
        yield batch
        return
    views = batch.views or Views(rows={BATCH: batch.frame})
    made = _made(section, views.rows)
    if not expects_bad and _needs_no_count(batch, section, views, made):
        rows, yields = _with_deletes(section, views, made, spec, table)
        yield replace(batch, frame=rows, rows=None, views=None, deletes_yield=yields)
        return
    marked = marked_rows(made, spec.record_key, section.source.description)
    pin(marked)
    try:
        ((records, bad),) = count_records(marked, 1)
        log.info("table %s: the transform made %s rows, %s of them bad", spec.table, records, bad)
        # The source's reader writes its bad records into the attempt's folder.
        box = replace(dead_letters, attempt=f"{dead_letters.attempt}/transformed")
        set_aside(marked, bad, spec.table, box, allowed=max(0, section.max_bad_records - batch.bad_records))
        rows, yields = _with_deletes(section, views, good_rows(marked), spec, table)
        yield replace(
            batch,
            frame=rows,
            rows=records - bad,
            bad_records=batch.bad_records + bad,
            # Only the unread columns are information about the input; the transform makes other columns.
            columns=None if batch.columns is None else BatchColumns(rows=records - bad, drift=batch.columns.drift),
            views=None,
            replaces=views.replaces,
            deletes_yield=yields,
        )
    finally:
        unpin(marked)


def _needs_no_count(batch: Batch, section: IngestSpec, views: Views, made: Frame) -> bool:
    """Return whether the write may read the rows as they are: it commits even without rows, and replaces nothing.

    Rows to delete may be found by a join with the rows to write, which are then computed twice. So the query must give
    the same rows each time.
    """
    if not batch.commits_empty or views.replaces or section.deduplicate is not None or batch.columns is not None:
        return False
    is_query = section.transform is None or bool(section.transform.sql)
    return is_query and (not views.marks_deletes or is_repeatable(made))


def _made(section: IngestSpec, views: Mapping[str, Frame]) -> Frame:
    """Return the result of a spec's transform for views."""
    if section.transform is None:
        return selected_columns(next(iter(views.values())), section.select)
    if section.transform.sql:
        return run_query(section.transform.sql, views)
    return run_function(section.transform.function, views)


def _with_deletes(
    section: IngestSpec, views: Views, rows: Frame, spec: TableSpec, table: Table | None
) -> tuple[Frame, bool]:
    """Return the rows, and deletes of rows that the transform no longer makes.

    The flag is true if the deletes cover all rows made before the changes, and rows with the same key replace them.
    """
    if not views.marks_deletes:
        return rows, False
    earlier = None if table is None else _earlier(section, views, rows, spec, table)
    if table is None or earlier is None:
        return with_deletes(rows, None), False
    if DELETED_COLUMN in rows.columns or section.on_delete == "clear":
        # Deletes by the transform itself do not yield, and cleared rows are not deletes for the write.
        return with_deletes(rows, not_among(earlier, rows, _identity(spec, table))), False
    return with_deletes(rows, earlier), True


def _earlier(section: IngestSpec, views: Views, rows: Frame, spec: TableSpec, table: Table) -> Frame | None:
    """Return the columns that a delete needs, for rows that the transform made before the changes."""
    if views.replaces or not len(table.schema):
        return None
    needed = _delete_columns(spec, table, rows)
    if views.removed is not None:
        # Rows without a key were not written.
        made = rows_with_key(_made(section, views.removed), spec.record_key)
        # Spark resolves names without regard to case.
        return made.select(*[f"`{name}`" for name in made.columns if name.lower() in needed])
    if views.groups is None:
        return None
    columns = table.schema.names
    for name in views.groups.columns:
        for names, place in ((rows.columns, "the rows of the transform"), (columns, "the table")):
            if name not in names:
                raise UserError(
                    f"table {spec.table}: group_by column {name!r} is not among the columns of {place}."
                    f"{nearest(name, names)} Rows of a group can only be deleted if they name their group; add it to "
                    "the transform, or write deletes: ignore",
                    column=name,
                )
    columns = [name for name in columns if name.lower() in needed or name in views.groups.columns]
    return stored_in_groups(rows.sparkSession, table.refresh(), columns, views.groups)


def _delete_columns(spec: TableSpec, table: Table, rows: Frame) -> frozenset[str]:
    """Return the columns that a delete needs, in lower case, so that other columns are neither read nor computed.

    These columns identify and order a row, or may not be null.
    """
    ordering = (*spec.ordering, *table.config.ordering_fields, *spec.column_groups)
    required = [field.name for schema in (table.schema, rows.schema) for field in schema if not field.nullable]
    return frozenset(n.lower() for n in (*spec.record_key, *_partition_columns(spec), *ordering, *required))


def _partition_columns(spec: TableSpec) -> tuple[str, ...]:
    return tuple(column.name for column in spec.partition_by)


def _identity(spec: TableSpec, table: Table) -> tuple[str, ...]:
    """Return the columns that identify a row: the key, and the partition columns unless the key is global."""
    if stored_index_type({**table.config.raw, **spec.write_options()}).is_global:
        return spec.record_key
    return (*spec.record_key, *(name for name in _partition_columns(spec) if name not in spec.record_key))
