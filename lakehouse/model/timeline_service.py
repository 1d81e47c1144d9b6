"""The table service, or the write, behind an instant: the words that pages, the command line and the API share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action

#: Extra metadata of a partition TTL commit: how many partitions expired by which rule.
TTL_RULES_KEY = "lakehouse.ttl.rules"
#: Extra metadata of an ingestion commit: its run. A commit from several inputs contains a key per input, with a suffix.
RUN_ID_KEY = "lakehouse.ingest.run_id"


class TimelineService(StrEnum):
    """The kind of an instant's writer, as spelled in JSON and flags; services have their own names."""

    WRITE = "write"
    COMPACTION = "compaction"
    LOG_COMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    INDEX = "index"
    TTL = "ttl"
    CLEAN = "clean"
    SAVEPOINT = "savepoint"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    REPLACEMENT = "replacement"

    @property
    def word(self) -> str:
        """The word for people."""
        return _WORDS.get(self, self.value)


_WORDS = {
    TimelineService.LOG_COMPACTION: "log compaction",
    TimelineService.INDEX: "indexing",
    TimelineService.TTL: "TTL",
    TimelineService.REPLACEMENT: "clustering or overwrite",
}
_OF_ACTION = {
    Action.COMPACTION: TimelineService.COMPACTION,
    Action.LOGCOMPACTION: TimelineService.LOG_COMPACTION,
    Action.CLUSTERING: TimelineService.CLUSTERING,
    Action.CLEAN: TimelineService.CLEAN,
    Action.ROLLBACK: TimelineService.ROLLBACK,
    Action.SAVEPOINT: TimelineService.SAVEPOINT,
    Action.RESTORE: TimelineService.RESTORE,
    Action.INDEXING: TimelineService.INDEX,
}
_OF_OPERATION = {
    Operation.COMPACT: TimelineService.COMPACTION,
    Operation.LOG_COMPACT: TimelineService.LOG_COMPACTION,
    Operation.CLUSTER: TimelineService.CLUSTERING,
}


def timeline_service(
    action: Action, operation: str = "", extra: Collection[str] = (), *, merge_on_read: bool = False
) -> TimelineService:
    """Return the service or write behind an instant.

    A completed compaction is a `commit` on the timeline, a log compaction a `deltacommit`, and clustering, partition
    TTL and overwrites are `replacecommit`: the operation in their metadata decides.

    Args:
        action: Action of the instant; of a completed plan, the action of its requested file if that is known.
        operation: Operation in the metadata of the commit; empty if it was not read.
        extra: Keys in the extra metadata of the commit.
        merge_on_read: Whether the table is merge-on-read, whose commits without known operation are compactions.

    Returns:
        The service. A `replacecommit` whose metadata was not read is REPLACEMENT: clustering, TTL or an overwrite.
    """
    if action in _OF_ACTION:
        return _OF_ACTION[action]
    if operation in _OF_OPERATION:
        return _OF_OPERATION[Operation(operation)]
    if operation == Operation.DELETE_PARTITION and TTL_RULES_KEY in extra:
        return TimelineService.TTL
    if not operation and action is Action.COMMIT and merge_on_read:
        return TimelineService.COMPACTION
    if not operation and action is Action.REPLACECOMMIT:
        return TimelineService.REPLACEMENT
    return TimelineService.WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitWriter:
    """The writer of a commit, as its metadata identifies it; empty strings for missing parts.

    Attributes:
        engine: The program, such as `lakehouse` or `Hudi Streamer`.
        run: Id of the ingestion run; `dag/run/task` if Airflow started it.
    """

    engine: str = ""
    run: str = ""


#: Keys of the extra metadata by which other programs mark their commits, and their names.
_ENGINES = {
    "deltastreamer.checkpoint.key": "Hudi Streamer",
    "streamer.checkpoint.key.v2": "Hudi Streamer",
    "_hudi_streaming_sink_checkpoint": "Spark Structured Streaming with Hudi",
}


def commit_writer(extra: Mapping[str, str]) -> CommitWriter:
    """Return the writer that the extra metadata of a commit identifies."""
    runs = [text for key, text in extra.items() if key == RUN_ID_KEY or key.startswith(f"{RUN_ID_KEY}.")]
    engines = [name for key, name in _ENGINES.items() if key in extra]
    if not engines and any(key.startswith("lakehouse.") for key in extra):
        engines = ["lakehouse"]
    return CommitWriter(engine=engines[0] if engines else "", run=runs[0] if runs else "")
