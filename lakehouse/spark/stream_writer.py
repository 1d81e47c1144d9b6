"""The writer of `df.writeStream.format("lakehouse")`: rows are staged as Arrow batches (see `staged_writer`).

Only versions of Spark that give Arrow batches to a streaming writer import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from lakehouse.spark.staged_writer import StagedMessage, StagedWrite, commit_batch, staged_rows


class LakehouseStreamWriter(DataSourceStreamArrowWriter):
    """Stages the rows of a batch, and commits them in the driver's Python process, exactly once per batch."""

    def __init__(self, write: StagedWrite, key: str) -> None:
        self._write, self._key = write, key

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task attempt."""
        return StagedMessage(self._write.stage(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Write the staged rows of the finished attempts in one commit, unless a commit contains the batch."""
        commit_batch(self._write, staged_rows(messages), self._key, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged rows."""
        self._write.staging.delete(staged_rows(messages))
