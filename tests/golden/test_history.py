"""Test that archived timelines of Apache Hudi 1.2.0 are decoded, and encoded to equal files.

There are two tables of sixteen writes, with hoodie.keep.min.commits=4, keep.max.commits=5, clean.commits.retained=2 and
timeline.compaction.batch.size=2. The copy-on-write table has an insert_overwrite and a clustering, the merge-on-read
table has compactions.
"""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.timeline.archive import (
    decode_manifest,
    encode_manifest,
    read_actions,
    read_instants,
    write_actions,
)
from lakehouse.core.format.timeline.clean import decode_clean_metadata
from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_requested_replace
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.commit import Operation
from lakehouse.model.instant import WRITE_ACTIONS, Action

HERE = Path(__file__).parent / "history"
TABLES = ("cow", "mor")


def files_of(table: str) -> list[Path]:
    return sorted((HERE / table).glob("*.parquet"))


def actions_of(table: str) -> list[ArchivedAction]:
    return [action for path in files_of(table) for action in read_actions(path)]


@pytest.mark.parametrize("table", TABLES)
def test_manifests_are_read_and_list_the_files(table: str) -> None:
    text = (HERE / table / "manifest_10").read_bytes()
    files = decode_manifest(text)
    assert [(HERE / table / file.name).stat().st_size for file in files] == [file.size_bytes for file in files]
    assert decode_manifest(encode_manifest(files)) == files
    history = ArchivedTimeline(LocalStorage(str(HERE)), table)
    assert history.files() == list(files)
    every = history.instants()
    assert every == sorted((i for path in files_of(table) for i in read_instants(path)), key=lambda i: i.requested)
    assert history.instants(completed_after=every[3].completion, requested_up_to=every[9].requested) == [
        i for i in every[:10] if i.completion > every[3].completion
    ]


@pytest.mark.parametrize("table", TABLES)
def test_archived_actions_are_decoded(table: str) -> None:
    actions = actions_of(table)
    for action in actions:
        assert action.metadata is not None and action.instant.completed is not None
        if action.instant.action in WRITE_ACTIONS:
            assert decode_commit(action.metadata).stats
        else:
            decode_clean_metadata(action.metadata)
    kinds = Counter(action.instant.action for action in actions)
    assert kinds.keys() == {Action.COMMIT, Action.REPLACECOMMIT, Action.CLEAN} | (
        {Action.DELTACOMMIT} if table == "mor" else set()
    )
    planned = [action for action in actions if action.plan is not None]
    assert {action.instant.action for action in actions if action not in planned} <= {
        Action.COMMIT if table == "cow" else Action.DELTACOMMIT
    }
    for action in planned:
        assert action.metadata is not None and action.plan is not None
        if action.instant.action is Action.COMMIT:
            assert decode_compaction_plan(action.plan).operations
        elif action.instant.action is Action.REPLACECOMMIT:
            clusters = decode_commit(action.metadata).operation == Operation.CLUSTER
            # The plan of an archived insert_overwrite is the content of its inflight file.
            assert decode_requested_replace(action.plan) if clusters else decode_commit(action.plan)


@pytest.mark.parametrize("table", TABLES)
def test_archive_files_of_equal_actions_equal_hudis(table: str) -> None:
    for path in files_of(table):
        buffer = io.BytesIO()
        write_actions(buffer, read_actions(path))
        theirs, ours = pq.ParquetFile(path), pq.ParquetFile(buffer)
        assert ours.schema.equals(theirs.schema) and ours.metadata.metadata == theirs.metadata.metadata
        assert ours.read().equals(theirs.read())
        chunks = [file.metadata.row_group(0).column(0) for file in (theirs, ours)]
        assert chunks[0].compression == chunks[1].compression
        assert (chunks[0].statistics.min, chunks[0].statistics.max) == (
            chunks[1].statistics.min,
            chunks[1].statistics.max,
        )
