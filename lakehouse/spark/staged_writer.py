"""The writers behind `df.write.format("lakehouse")` and `df.writeStream.format("lakehouse")`.

Spark gives the rows of a Python data source to tasks as they are partitioned, and cannot shuffle them to their file
groups. So the tasks stage their rows beside the table (`frame_staging`), and one Python process on the driver writes
and commits them, within the memory budget:

    driver      create or open the table; delete the staged rows of killed writes
    tasks       stage the rows; each attempt returns its file
    driver      commit: write the rows of the finished attempts in one commit; delete the staged rows

All rows of one write pass through that process, so their size has a limit: `lakehouse.write.local.max.bytes`. Above it
the write is refused before it changes the table. `lakehouse.spark.write(df, path, options)` writes in all tasks.

A stream stores the id of its query and the number of the batch in each commit. Spark does not pass the id to a Python
writer, so it is read from the checkpoint folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakehouse.core.env import Env
from lakehouse.core.operations.write.frame_staging import FrameStaging, StagedRows, delete_expired_frames
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.errors import UserError
from lakehouse.spark.stream import STREAM, sink_name, write_once
from lakehouse.spark.workers import prepare_for_reuse
from lakehouse.spec.options.hudi.write_job import (
    CHECKPOINT,
    INSERT_OVERWRITE_TABLE,
    LOCAL_LIMIT,
    PATH,
    WriteJob,
    parse_write_job,
)

_NO_PATH = (
    'format("lakehouse") got no location: Spark passes no options to a Python data source for saveAsTable, insertInto '
    "and SQL statements on tables of its catalog. No row was written. Write with .save(path), or call "
    "lakehouse.spark.write(df, path, options)"
)


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """One write through staged rows; picklable, because Spark sends it to tasks and to the process that commits.

    Attributes:
        location: The location of the table.
        job: The options.
        mode: The save mode.
        staging: The folder of the rows; None if the mode is `ignore` and the table exists.
        schema: The columns of the rows.
    """

    location: str
    job: WriteJob
    mode: SaveMode
    staging: FrameStaging
    schema: pa.Schema

    @classmethod
    def begin(cls, options: Mapping[str, str], schema: StructType, mode: SaveMode) -> StagedWrite:
        """Create or open the table, and choose the folder of the staged rows."""
        location = next((value for key, value in options.items() if key.lower() == PATH), "")
        if not location:
            raise UserError(_NO_PATH)
        job = parse_write_job(options)
        columns = to_arrow_schema(schema)
        target = open_target(location, job, mode, columns)
        assert isinstance(target, JobTarget), "only the mode 'ignore' has nothing to do"
        env = Env(storage=open_storage(location, dict(job.storage)))
        delete_expired_frames(env.storage, env.clock.now_ms())
        # The table may have been created above; the commit still replaces all rows of one that existed.
        job = target.job
        staging = FrameStaging(env.storage, env.ids.uuid())
        return cls(location, job, SaveMode.APPEND, staging, columns)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows | None:
        """Stage the rows of one task attempt."""
        staged = self.staging.write(batches, Env(storage=self.staging.storage).ids.uuid, self._check)
        prepare_for_reuse()
        return staged

    def open(self, staged: Sequence[StagedRows]) -> JobTarget:
        """Return the table for the commit of these rows; raise UserError if they exceed the limit."""
        self._check(sum(part.bytes for part in staged))
        target = open_target(self.location, self.job, self.mode)
        assert isinstance(target, JobTarget), "the mode is 'append'"
        return target

    def rows(self, staged: Sequence[StagedRows]) -> pa.RecordBatchReader:
        """Return the staged rows for one write."""
        return self.staging.reader(staged, self.schema)

    def _check(self, size: int) -> None:
        if size > self.job.local_limit:
            raise UserError(
                f"the rows of this write take more than {self.job.local_limit} bytes, the limit of "
                'format("lakehouse"), whose rows all pass through one Python process of the driver. Nothing was '
                "written. Call lakehouse.spark.write(df, path, options), which writes in all tasks, or raise "
                f"{LOCAL_LIMIT}",
                option=LOCAL_LIMIT,
            )


@dataclass
class StagedMessage(WriterCommitMessage):
    """The result of a task attempt: its staged file, or None if it had no rows."""

    staged: StagedRows | None


def staged_rows(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the files of the finished attempts."""
    parts = [message.staged for message in messages if isinstance(message, StagedMessage)]
    return [part for part in parts if part is not None]


def commit_frame(write: StagedWrite, staged: Sequence[StagedRows]) -> None:
    """Write the staged rows of a DataFrame in one commit, and delete them."""
    try:
        target = write.open(staged)
        target.log_unused()
        if staged or target.job.operation == INSERT_OVERWRITE_TABLE:
            target.write(write.rows(staged))
    finally:
        write.staging.delete(staged)


def commit_batch(write: StagedWrite, staged: Sequence[StagedRows], key: str, batch: int) -> None:
    """Write the staged rows of one batch of a stream, unless a commit contains the batch, and delete them."""
    try:
        target = write.open(staged)
        if batch == 0:
            target.log_unused()
        if staged or target.job.operation == INSERT_OVERWRITE_TABLE:
            write_once(
                target.table,
                key,
                batch,
                lambda extra, check: target.write(write.rows(staged), extra=extra, precondition=check),
            )
    finally:
        write.staging.delete(staged)


def query_key(options: Mapping[str, str], job: WriteJob) -> str:
    """Return the key of a stream's batches in the extra metadata of commits, from the id in its checkpoint folder.

    Raises UserError if the options do not contain the checkpoint folder, or it cannot be read.
    """
    folder = next((value for key, value in options.items() if key.lower() == CHECKPOINT), "")
    if not folder:
        raise UserError(
            'a stream to format("lakehouse") needs .option("checkpointLocation", folder) on the query itself: the id '
            "of the query is read there, so that a repeated batch is not written twice",
            option="checkpointLocation",
        )
    storage = open_storage(folder, dict(job.storage))
    try:
        query = json.loads(storage.get("metadata"))["id"]
    except (NotFoundError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the checkpoint folder {folder} has no file 'metadata' with the id of the query ({error}). Write the "
            "stream with foreachBatch and lakehouse.spark.write(df, path, options, batch_id=id)",
            option="checkpointLocation",
        ) from error
    return f"{STREAM}{sink_name(str(query), job.identifier)}"
