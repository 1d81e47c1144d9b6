"""The last step of every action: the lock is checked right before the completed file is created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit import completion
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.metadata_check import check_metadata
from tests.support.tables import SCHEMA, SeededIds, batch, data_rows, make_env, row


def _lose_lock_after_the_record(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process take the lock after the change was recorded in the metadata table."""
    record = completion.commit_metadata

    def record_and_stall(*given: Any, **named: Any) -> Any:
        recorded = record(*given, **named)
        env.clock.sleep(3600)
        monkeypatch.setattr(env.process_state, "_thread_locks", {})
        with table_lock(replace(env, ids=SeededIds(77)), TransactionPolicy()):
            pass
        return recorded

    monkeypatch.setattr(completion, "commit_metadata", record_and_stall)


@pytest.mark.parametrize("metadata", ["true", "false"])
def test_action_is_not_completed_if_the_lock_was_lost_while_the_change_was_recorded(
    metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env()
    options = {"hoodie.metadata.enable": metadata}
    table = Table.create(env.storage.root, name="t", record_key="id", schema=SCHEMA, options=options, env=env)
    table.insert(batch([row("a", v="1")]))
    complete, tried = TimelineStore.complete, list[Action]()

    def counted(store: TimelineStore, instant: Instant, *given: Any, **named: Any) -> Instant:
        tried.append(instant.action)
        return complete(store, instant, *given, **named)

    _lose_lock_after_the_record(env, monkeypatch)
    monkeypatch.setattr(TimelineStore, "complete", counted)
    with pytest.raises(RetryableError, match="was lost"):
        table.insert(batch([row("b", v="2")]))
    monkeypatch.undo()
    assert Action.COMMIT not in tried, "the lock has to be checked before the file is created"
    assert [found["id"] for found in data_rows(Table.open(table.location, env=env))] == ["a"]


def test_lost_deletion_of_a_partition_leaves_its_keys_in_the_record_index(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env()
    options = {
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.index.type": "RECORD_INDEX",
    }
    table = Table.create(
        env.storage.root, name="t", record_key="id", partition_by=["p"], schema=SCHEMA, options=options, env=env
    )
    table.insert(batch([row("a", v="1")]))
    partition = data_rows(table)[0]["p"]
    _lose_lock_after_the_record(env, monkeypatch)
    with pytest.raises(RetryableError, match="was lost"):
        table.delete_partitions([partition])
    monkeypatch.undo()
    again = Table.open(table.location, env=env)
    # A deletion has no data files, so no rollback removes what it had written to the metadata table.
    # It would be valid from the next write on.
    again.insert(batch([row("b", p="b", v="1")]))
    again.upsert(batch([row("a", v="2")]))
    assert [(found["id"], found["v"]) for found in data_rows(again)] == [("a", "2"), ("b", "1")]
    check_metadata(again)
