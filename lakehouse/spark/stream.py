"""Write a Structured Streaming query to a table, exactly once.

    query = frame.writeStream.foreachBatch(sink(table)).option("checkpointLocation", folder).start()

Spark repeats a batch with the same rows and number if a query ends between the write and Spark's own record of the
batch. Each commit therefore contains the id of the query and the number of the batch, and a batch that is in a commit
is not written again. The id of a query is in its checkpoint folder: a query with a new folder has a new id, begins with
batch 0, and writes all batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame

from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.commits import latest_extra
from lakehouse.core.table.arguments import Outcome
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, UserError, nearest
from lakehouse.model.nothing_to_do import NothingToDoReason

log = logging.getLogger(__name__)

#: Start of the key in a commit's extra metadata; the id of the query follows. The value is the number of the batch.
STREAM = "lakehouse.stream."
OPERATIONS = ("upsert", "insert", "bulk_insert")
_QUERY_ID = "sql.streaming.queryId"
_MAX_TRIES = 3

#: The function that `foreachBatch` calls with the rows and the number of a batch.
BatchFunction: TypeAlias = Callable[[DataFrame, int], None]
#: Writes a batch with extra metadata and a precondition.
BatchWrite: TypeAlias = Callable[[Mapping[str, str], Precondition], Outcome]


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
    verb = {"upsert": table.upsert, "insert": table.insert, "bulk_insert": table.bulk_insert}[operation]

    def write_batch(rows: DataFrame, batch: int) -> None:
        def write(extra: Mapping[str, str], precondition: Precondition) -> Outcome:
            return verb(rows, commit_metadata=extra, precondition=precondition)

        write_once(table, stream_key(rows), batch, write)

    return write_batch


def write_once(table: Table, key: str, batch: int, write: BatchWrite) -> Outcome:
    """Write one batch of a stream, unless a commit of the table contains it already.

    Args:
        table: The table.
        key: The key of the stream in the extra metadata of commits.
        batch: The number of the batch.
        write: Writes the rows with extra metadata and a precondition; it may be called again after a conflict.
    """
    for number in range(1, _MAX_TRIES + 1):
        loaded = table.refresh()
        written = latest_extra(loaded, key)
        if written is not None and int(written) >= batch:
            log.info("%s: batch %s is in a commit already", table.location, batch)
            reason = f"a commit contains batch {batch} already"
            return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)
        # A disconnected driver may still write the same batch.
        precondition = Precondition(timeline=loaded.timeline, marks={key: None})
        try:
            return write({key: str(batch)}, precondition)
        except ConflictError:
            if number == _MAX_TRIES:
                raise
    raise AssertionError("the last try returns or raises")


def stream_key(rows: DataFrame, identifier: str = "") -> str:
    """Return the key in the extra metadata of commits for the streaming query that runs in this thread.

    Raises UserError if none does. `identifier` separates several sinks of one query.
    """
    query_id: str | None = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise UserError("the sink of a table is called by foreachBatch of a streaming query; write a frame by upsert()")
    return f"{STREAM}{sink_name(query_id, identifier)}"


def sink_name(query_id: str, identifier: str) -> str:
    """Return the name of one sink of a query."""
    return f"{query_id}.{identifier}" if identifier else query_id
