"""Drop rows of events that were delivered more than once, between the transform and the write in `run`.

The checkpoint is in the commit, so a retried run does not read the same records. This step handles events that the
source itself contains several times. It compares rows with other rows of the batch and with stored rows in the time
window.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lakehouse.core.table.table import Table
from lakehouse.platform.sources.source import Batch
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spark.bad_records import pin, unpin
from lakehouse.spark.duplicates import Window, check_columns, condition_on_stored, without_repeated, without_stored
from lakehouse.spark.failures import spark_failures
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: Key in a commit's extra metadata: the number of dropped rows.
DUPLICATES = "lakehouse.ingest.duplicates"


@contextmanager
def deduplicated(batch: Batch | None, spec: TableSpec, table: Table | None) -> Iterator[Batch | None]:
    """Return the batch without rows of duplicate events, for the duration of a `with` block.

    Raises UserError for a column in the section that the rows lack.
    """
    section = ingest_of(spec)
    if batch is None or section.deduplicate is None or not batch.rows:
        yield batch
        return
    settings = section.deduplicate
    window = Window(
        keys=settings.keys or spec.record_key, time=settings.time or section.event_time, within_s=settings.within_s
    )
    check_columns(batch.frame, window)
    frame = batch.frame
    if table is not None and len(table.schema):
        where = condition_on_stored(frame, window)
        if where is not None:
            stored = table.scan(columns=[*window.keys, window.time], where=where).to_spark(frame.sparkSession)
            frame = without_stored(frame, stored, window)
    frame = without_repeated(frame, window)
    pin(frame)
    try:
        with spark_failures("finding duplicates"):
            rows = frame.count()
        dropped = batch.rows - rows
        log.info("table %s: %s of %s rows are duplicates", spec.table, dropped, batch.rows)
        yield replace(
            batch,
            frame=frame,
            rows=rows,
            duplicates=dropped,
            columns=None if batch.columns is None else replace(batch.columns, rows=rows),
            # If all rows are duplicates, the records must not be read again.
            commits_empty=batch.commits_empty or dropped > 0,
            metadata={**batch.metadata, DUPLICATES: str(dropped)},
        )
    finally:
        unpin(frame)
