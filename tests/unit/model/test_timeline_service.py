"""The service behind an instant, and the writer of a commit, from values of its metadata."""

from __future__ import annotations

import pytest

from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action
from lakehouse.model.timeline_service import (
    RUN_ID_KEY,
    TTL_RULES_KEY,
    CommitWriter,
    TimelineService,
    commit_writer,
    timeline_service,
)
from lakehouse.spec.table.services import SERVICES


@pytest.mark.parametrize(
    ("action", "operation", "merges", "service"),
    [
        (Action.COMPACTION, "", True, TimelineService.COMPACTION),
        (Action.COMMIT, Operation.COMPACT, True, TimelineService.COMPACTION),
        (Action.COMMIT, "", True, TimelineService.COMPACTION),
        (Action.COMMIT, Operation.UPSERT, False, TimelineService.WRITE),
        (Action.COMMIT, "", False, TimelineService.WRITE),
        (Action.DELTACOMMIT, Operation.LOG_COMPACT, True, TimelineService.LOG_COMPACTION),
        (Action.LOGCOMPACTION, "", True, TimelineService.LOG_COMPACTION),
        (Action.DELTACOMMIT, Operation.UPSERT, True, TimelineService.WRITE),
        (Action.REPLACECOMMIT, Operation.CLUSTER, False, TimelineService.CLUSTERING),
        (Action.CLUSTERING, "", False, TimelineService.CLUSTERING),
        (Action.REPLACECOMMIT, Operation.INSERT_OVERWRITE, False, TimelineService.WRITE),
        (Action.REPLACECOMMIT, Operation.DELETE_PARTITION, False, TimelineService.WRITE),
        (Action.REPLACECOMMIT, "", False, TimelineService.REPLACEMENT),
        (Action.REPLACECOMMIT, "SPELLING_OF_ANOTHER_WRITER", False, TimelineService.WRITE),
        (Action.CLEAN, "", False, TimelineService.CLEAN),
        (Action.INDEXING, "", False, TimelineService.INDEX),
        (Action.ROLLBACK, "", False, TimelineService.ROLLBACK),
        (Action.RESTORE, "", False, TimelineService.RESTORE),
        (Action.SAVEPOINT, "", False, TimelineService.SAVEPOINT),
    ],
)
def test_service_of_an_instant_follows_its_action_and_operation(
    action: Action, operation: str, merges: bool, service: TimelineService
) -> None:
    assert timeline_service(action, operation, merge_on_read=merges) is service


def test_deleted_partitions_are_ttl_only_with_its_rules_in_the_commit() -> None:
    extra = {TTL_RULES_KEY: "{}"}
    assert timeline_service(Action.REPLACECOMMIT, Operation.DELETE_PARTITION, extra) is TimelineService.TTL
    assert timeline_service(Action.REPLACECOMMIT, Operation.INSERT_OVERWRITE, extra) is TimelineService.WRITE


def test_services_of_a_timeline_have_the_names_of_table_services() -> None:
    others = {"write", "savepoint", "rollback", "restore", "replacement"}
    assert {str(service) for service in TimelineService} - others <= set(SERVICES)
    assert TimelineService.LOG_COMPACTION.word == "log compaction" and TimelineService.CLEAN.word == "clean"


@pytest.mark.parametrize(
    ("extra", "writer"),
    [
        ({}, CommitWriter()),
        ({"schema": "{}"}, CommitWriter()),
        ({f"{RUN_ID_KEY}.rides": "d/r/t"}, CommitWriter(engine="lakehouse", run="d/r/t")),
        ({RUN_ID_KEY: "d/r/t"}, CommitWriter(engine="lakehouse", run="d/r/t")),
        ({f"{RUN_ID_KEY}entity": "x"}, CommitWriter(engine="lakehouse")),
        ({"deltastreamer.checkpoint.key": "0"}, CommitWriter(engine="Hudi Streamer")),
        ({"_hudi_streaming_sink_checkpoint": "{}"}, CommitWriter(engine="Spark Structured Streaming with Hudi")),
    ],
)
def test_writer_of_a_commit_follows_its_extra_metadata(extra: dict[str, str], writer: CommitWriter) -> None:
    assert commit_writer(extra) == writer
