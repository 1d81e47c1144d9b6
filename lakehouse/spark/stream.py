"""Write a Structured Streaming query to a table, exactly once.

    query = frame.writeStream.foreachBatch(sink(table)).option("checkpointLocation", folder).start()

Spark repeats a batch with the same rows and number if a query ends between the write and Spark's own record of the
batch. Each commit therefore contains the id of the query and the number of the batch, and a batch that is in a commit
is not written again. The id of a query is in its checkpoint folder: a query with a new folder has a new id, begins with
batch 0, and writes all batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import DataFrame

from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.load.commits import latest_extra
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, UserError, nearest

log = logging.getLogger(__name__)

#: Start of the key in a commit's extra metadata; the id of the query follows. The value is the number of the batch.
STREAM = "lakehouse.stream."
OPERATIONS = ("upsert", "insert", "bulk_insert")
_QUERY_ID = "sql.streaming.queryId"
_MAX_TRIES = 3

#: The function that `foreachBatch` calls with the rows and the number of a batch.
BatchFunction: TypeAlias = Callable[[DataFrame, int], None]


def sink(table: Table, operation: str = "upsert") -> BatchFunction:
    """Return the function that writes each batch of a query in one commit.

    A batch without rows makes no commit.

    Args:
        table: The table.
        operation: `upsert`, `insert` or `bulk_insert`.

    Raises:
        UserError: The operation is unknown. The function also raises it outside of a streaming query.
    """
    if operation not in OPERATIONS:
        raise UserError(
            f"a stream cannot {operation!r}.{nearest(operation, OPERATIONS)} Operations are {', '.join(OPERATIONS)}",
            argument="operation",
        )
    write = {"upsert": table.upsert, "insert": table.insert, "bulk_insert": table.bulk_insert}[operation]

    def write_batch(rows: DataFrame, batch: int) -> None:
        key = f"{STREAM}{_query_id(rows)}"
        for number in range(1, _MAX_TRIES + 1):
            loaded = table.refresh()
            written = latest_extra(loaded, key)
            if written is not None and int(written) >= batch:
                log.info("%s: batch %s is in a commit already", table.location, batch)
                return
            # A disconnected driver may still write the same batch.
            precondition = Precondition(timeline=loaded.timeline, marks={key: None})
            try:
                write(rows, commit_metadata={key: str(batch)}, precondition=precondition)
                return
            except ConflictError:
                if number == _MAX_TRIES:
                    raise

    return write_batch


def _query_id(rows: DataFrame) -> str:
    """Return the id of the streaming query that runs in this thread."""
    query_id: str | None = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise UserError("the sink of a table is called by foreachBatch of a streaming query; write a frame by upsert()")
    return query_id
