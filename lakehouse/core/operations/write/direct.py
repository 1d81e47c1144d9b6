"""The direct strategy: tasks write the rows to new files without staging them (bulk_insert; TL-7.1)."""

from __future__ import annotations

from functools import partial

from lakehouse.core.files.base.bulk_writer import write_shard
from lakehouse.core.operations.write.attempt import WriteAttempt, start_writing
from lakehouse.model.commit import WriteStat


def write_direct(attempt: WriteAttempt) -> list[WriteStat]:
    """Write all rows to new file groups, and return the stats of their files.

    The driver does not know the file names before the tasks run, so each task creates the markers of its files.
    """
    start_writing(attempt, ())
    attempt.markers.begin()
    task = partial(write_shard, attempt.context)
    by, least = attempt.prepared.partition_by, attempt.policies.spread.min_bytes
    return attempt.engine.exchange(attempt.request.frame, task, by=by, hint="balanced", least_bytes=least)
