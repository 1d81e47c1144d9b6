"""Writes a DataFrame by the options of a Hudi job, in the tasks of its session, on all versions of Spark.

`df.write.format("lakehouse")` is for smaller writes (see `staged_writer`), and Spark 3.5 does not have it. `write`
takes the same options, and its tasks write to the file groups of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.errors import UserError
from lakehouse.spark.stream import stream_key, write_once
from lakehouse.spark.versions.choice import require_classic
from lakehouse.spark.worker_python import set_worker_python
from lakehouse.spec.options.hudi.write_job import PATH, parse_write_job


def write(
    frame: DataFrame,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    mode: str = "append",
    batch_id: int | None = None,
) -> Committed | NothingToDo:
    """Write a DataFrame to a table with the options of a Hudi job, and return the commit.

    `write(frame, path, options, mode=mode)` has the effect of
    `frame.write.format("hudi").options(**options).mode(mode).save(path)`. A missing table is created.

    Args:
        frame: The rows.
        path: URL or path of the table.
        options: Hudi's options, such as `hoodie.datasource.write.recordkey.field`; the page "Options of Hudi jobs"
            lists them.
        mode: append, overwrite, ignore or error.
        batch_id: The number of the batch, in a function of `foreachBatch`: a batch that Spark repeats after a restart
            is then not written again. A function that writes a table several times per batch gives each write its own
            `hoodie.datasource.write.streaming.checkpoint.identifier`.

    Raises:
        UserError: An option is unknown or cannot be honoured, the mode does not allow the write, or the options
            contradict the table.

    Example:
        write(orders, "s3://lake/orders", {"hoodie.table.name": "orders", ...}, mode="append")
    """
    require_classic(frame)
    set_worker_python(frame.sparkSession)
    given = {**(options or {})}
    if path is not None:
        if any(key.lower() == PATH for key in given):
            raise UserError("'path' is an argument and an option of this write; give one of them", argument=PATH)
        given[PATH] = path
    location = next((value for key, value in given.items() if key.lower() == PATH), None)
    if not location:
        raise UserError("a write needs the table's location: write(frame, path, options)", argument=PATH)
    job = parse_write_job(given)
    target = open_target(location, job, SaveMode.of(mode), to_arrow_schema(frame.schema))
    if not isinstance(target, JobTarget):
        return target
    if not batch_id:
        target.log_unused()
    if batch_id is None:
        return target.write(frame)
    key = stream_key(frame, job.identifier)
    return write_once(
        target.table, key, batch_id, lambda extra, check: target.write(frame, extra=extra, precondition=check)
    )
